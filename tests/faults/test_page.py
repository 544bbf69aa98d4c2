"""docs/failover.md tells of every trouble that is provoked here, of no other, and the numbers of the code."""

from __future__ import annotations

import re
from collections import Counter
from inspect import signature
from pathlib import Path

import pytest
from tests.faults.table import ROWS

from comporta.limits.config import FALLBACKS
from comporta.limits.key import _PLAIN_BYTES_MAX
from comporta.limits.share import RETRY_US
from comporta.stores import keeper, pool
from comporta.stores.failover import KEYS_ALONE_MAX, KEYS_NAMED_MAX
from comporta.stores.redis import TIMEOUT_SECONDS
from comporta.stores.shared import SharedStore
from comporta.stores.workers import BEAT_SECONDS, DEAD_SECONDS, GATHER_SECONDS

TROUBLES = [row.name for row in ROWS]
LOCK_SECONDS: float = signature(SharedStore).parameters["lock_timeout"].default
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "failover.md").read_text(encoding="utf-8")
SAID = [
    (f"`?timeout={TIMEOUT_SECONDS:g}`", TIMEOUT_SECONDS),
    (f"within its deadline, {TIMEOUT_SECONDS * 1000:g} ms", TIMEOUT_SECONDS),
    (f"`?lock_timeout={LOCK_SECONDS:g}`", LOCK_SECONDS),
    (f"{pool.CONNECTS_MAX} are made at once, {pool.IDLE_MAX} kept", pool.IDLE_MAX),
    (f"keys over {_PLAIN_BYTES_MAX} bytes", _PLAIN_BYTES_MAX),
    ("once a second", BEAT_SECONDS == 1),
    (f"after {DEAD_SECONDS:g} s", DEAD_SECONDS),
    (f"{GATHER_SECONDS:g} s after the first of it", GATHER_SECONDS),
    (f"after {keeper.PROBE_FIRST_SECONDS * 1000:g} ms", keeper.PROBE_FIRST_SECONDS),
    (f"up to every {keeper.PROBE_LONGEST_SECONDS:g} s", keeper.PROBE_LONGEST_SECONDS),
    ("answers two calls in a row", keeper._GOOD_SIGNS == 2),
    ("every minute", keeper._LOUD_EVERY_NS == 60e9),
    (f"keeps {KEYS_ALONE_MAX:,} keys apart", KEYS_ALONE_MAX),
    (f"{KEYS_NAMED_MAX:,} of them at the most", KEYS_NAMED_MAX),
    ("ask again in a second", RETRY_US == 1_000_000),
    *((f'| `"{policy}"` |', policy) for policy in FALLBACKS),
]


def test_rows__names__are_all_different() -> None:
    assert [name for name, times in Counter(TROUBLES).items() if times > 1] == []


def test_page__table_of_troubles__is_the_table_that_is_provoked() -> None:
    [table] = re.findall(r"^\| trouble \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    told = [line.split("|")[1].strip() for line in table.splitlines()]
    assert sorted(told) == sorted(TROUBLES)


@pytest.mark.parametrize(("said", "number"), SAID)
def test_page__numbers__are_those_of_the_code(said: str, number: object) -> None:
    assert number
    assert said in PAGE
