"""The variables of the service: lists, secrets and aliases."""

from __future__ import annotations

import pytest

from comporta.settings import load_settings

FIRST = "a-token-of-24-characters"
SECOND = "b-token-of-24-characters"


def test_variables__list_and_secret__are_parsed() -> None:
    environ = {
        "COMPORTA_SERVICE_TRUSTED_PROXIES": "10.0.0.0/8, 192.168.0.0/16",
        "COMPORTA_SERVICE_ADMIN_TOKEN": FIRST,
    }
    service = load_settings(environ=environ).service
    assert service.trusted_proxies == ["10.0.0.0/8", "192.168.0.0/16"]
    assert service.admin_token == FIRST


def test_alias__same_value_as_the_full_name__is_accepted() -> None:
    environ = {"COMPORTA_DASHBOARD_TOKEN": FIRST, "COMPORTA_SERVICE_DASHBOARD_TOKEN": FIRST}
    assert load_settings(environ=environ).service.dashboard_token == FIRST


def test_alias__other_value_than_the_full_name__is_an_error_without_the_values() -> None:
    environ = {"COMPORTA_DASHBOARD_TOKEN": FIRST, "COMPORTA_SERVICE_DASHBOARD_TOKEN": SECOND}
    with pytest.raises(ValueError, match="must have the same value as") as error:
        load_settings(environ=environ)
    assert FIRST not in str(error.value)
    assert SECOND not in str(error.value)


@pytest.mark.parametrize("token", ["short", "sixteen but blank", "a-token-of-24-charactér"])
def test_secret__invalid__is_an_error_that_does_not_show_it(token: str) -> None:
    with pytest.raises(ValueError, match="at least 16 ASCII characters without a space, got a hidden value"):
        load_settings(environ={"COMPORTA_SERVICE_ADMIN_TOKEN": token})
