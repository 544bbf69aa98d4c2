"""``comporta doctor --portals`` against simulated portals, and addresses that are wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.cli.cli_runner import run, run_json

from comporta.testing import ProcurementServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcurementServer]:
    with ProcurementServer(seed=5) as started:
        monkeypatch.setenv("COMPORTA_SERVICE_ADDRESSES_PNCP", started.pncp.url)
        monkeypatch.setenv("COMPORTA_SERVICE_ADDRESSES_PCP", started.pcp.url)
        monkeypatch.setenv("COMPORTA_SERVICE_ALLOW_PRIVATE_ADDRESSES", "true")
        monkeypatch.setenv("COMPORTA_STATE", "redis://127.0.0.1:1/0")  # which is not used
        yield started


def test_portals__reachable__are_asked_once_and_described(server: ProcurementServer) -> None:
    ran = run("doctor", "--portals")
    assert ran.exit_code == 0, ran.output
    assert "All checks passed." in ran.stdout
    found = run_json("doctor", "--portals")
    assert [(one["check"], one["status"]) for one in found] == [("pncp", "ok"), ("pcp", "ok")]
    assert f"{server.pcp.url}: 10 notices of " in found[1]["detail"]
    assert all(re.search(r": (1 notice|(?!1 )[0-9]+ notices) of ", one["detail"]) for one in found)
    assert (server.pncp.accepted, server.pcp.accepted) == (2, 2)


def test_portals__wrong_address__fails_and_names_the_setting(
    server: ProcurementServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPORTA_SERVICE_ADDRESSES_PCP", f"{server.url}/elsewhere")
    ran = run("doctor", "--portals", "--json")
    assert ran.exit_code == 1
    assert "PortalStatusError: pcp answered with status 404; check service.addresses.pcp" in ran.stdout
    monkeypatch.setenv("COMPORTA_SERVICE_ALLOW_PRIVATE_ADDRESSES", "false")
    assert "must be on the public network" in run("doctor", "--portals", "--json").stdout


def test_portals__with_a_state__is_a_usage_error(server: ProcurementServer) -> None:
    ran = run("doctor", "memory://", "--portals")
    assert ran.exit_code == 2
    assert "--portals checks no state, got 'memory://'" in ran.stderr
