"""A table of settings that a class declares."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from comporta.settings.field_types import FlagField, NumberField
from comporta.settings.toml_table import SettingsTable, setting, setting_names, type_of_setting


def test_settings_table__declared_fields__have_their_type_and_default() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Table(SettingsTable):
        count: int = setting(NumberField(minimum=1), 5)
        flag: bool | None = setting(FlagField())

    assert setting_names(Table) == ("count", "flag")
    assert type_of_setting(Table, "flag") == FlagField()
    assert Table().keyword_arguments() == {"count": 5}
    with pytest.raises(ValueError, match=r"^settings: count must be at least 1, got 0$"):
        Table(count=0)
