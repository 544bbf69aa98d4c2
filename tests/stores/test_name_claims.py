"""Names that objects take over from others while settings are reloaded."""

from __future__ import annotations

import pytest

from comporta.stores.memory import MemoryStore
from comporta.stores.name_claims import NameClaims, replacing_names


def test_replacing_names__block_ends__the_name_has_the_new_configuration() -> None:
    claims, store = NameClaims(), MemoryStore()
    claim = claims.claim(store, "n", "old")
    with replacing_names() as undo:
        assert claims.claim(store, "n", "new") is claim
        assert claims.claim(store, "other", "new").config == "new"
    with pytest.raises(ValueError, match="name 'n' is in use on this store for new, got old"):
        claims.claim(store, "n", "old")
    undo()
    assert claims.claim(store, "n", "old") is claim


def test_replacing_names__block_raises__the_name_keeps_its_configuration() -> None:
    claims, store = NameClaims(), MemoryStore()
    claim = claims.claim(store, "n", "old")
    missing: dict[object, str] = {}
    with pytest.raises(KeyError, match="new"), replacing_names():
        claims.claim(store, "n", missing[claims.claim(store, "n", "new").config])
    assert claim.config == "old"
