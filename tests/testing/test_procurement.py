"""The simulated procurement portals: what they publish, their rate limits and their faults."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from comporta.testing import ProcurementServer, SimulatedPortal
from comporta.testing.portals import main
from comporta.testing.procurement import MODES
from comporta.testing.programs import free_port

PNCP = "/api/consulta/v1/contratacoes/publicacao?dataInicial={}&dataFinal={}&codigoModalidadeContratacao=6"
DAYS = ("20260101", "20260131")


@pytest.fixture
def server() -> Iterator[ProcurementServer]:
    with ProcurementServer(seed=3, pncp_rate=None, pcp_rate=None) as started:
        yield started


def fetch(url: str, body: bytes | None = None, method: str = "GET") -> tuple[int, Any]:
    request = urllib.request.Request(url, body, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310 - loopback
            content = response.read()
            return response.status, json.loads(content) if content else None
    except HTTPError as error:
        with error:
            return error.code, {**json.loads(error.read()), "after": error.headers["retry-after"]}


def pncp(portal: SimulatedPortal, uf: str = "SP", page: int = 1, size: int = 50) -> tuple[int, Any]:
    return fetch(f"{portal.url}{PNCP.format(*DAYS)}&uf={uf}&pagina={page}&tamanhoPagina={size}")


def pcp(portal: SimulatedPortal, page: int = 1, day: str = "2026-01-05", kind: str = "1") -> tuple[int, Any]:
    days = f"dataInicial={day}&dataFinal={day}&tipoData={kind}"
    return fetch(f"{portal.url}/v2/licitacao/processos?{days}&pagina={page}")


def test_pncp__all_pages__contain_each_matching_tender_once(server: ProcurementServer) -> None:
    status, first = pncp(server.pncp, size=10)
    assert status == 200
    rest = [pncp(server.pncp, page=page, size=10)[1] for page in range(2, first["totalPaginas"] + 1)]
    items = [item for page in (first, *rest) for item in page["data"]]
    numbers = {item["numeroControlePNCP"] for item in items}
    assert len(items) == len(numbers) == first["totalRegistros"] > 10
    assert {item["unidadeOrgao"]["ufSigla"] for item in items} == {"SP"}
    assert rest[-1]["paginasRestantes"] == 0
    assert pncp(server.pncp, page=999)[0] == 400


def test_portals__same_seed__share_tenders_and_another_seed_differs(server: ProcurementServer) -> None:
    buyers = {item["orgaoEntidade"]["cnpj"] for item in pncp(server.pncp)[1]["data"]}
    _, first = pcp(server.pcp)
    items = [item for page in range(first["pageCount"]) for item in pcp(server.pcp, page + 1)[1]["result"]]
    units = [item["unidadeCompradora"] for item in items]
    assert buyers & {unit.get("cnpj") or unit.get("CNPJ") for unit in units if unit["uf"] == "SP"}
    with ProcurementServer(seed=3) as twin, ProcurementServer(seed=4) as other:
        assert pncp(twin.pncp) == pncp(server.pncp)
        assert pncp(other.pncp) != pncp(server.pncp)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("dataInicial=20260230&dataFinal=20260301", "422 dataInicial and dataFinal must be days"),
        (
            "dataInicial=2026-01-01&dataFinal=20260301",
            "422 dataInicial and dataFinal must be days: a day must",
        ),
        ("dataInicial=20260301&dataFinal=20260101", "422 dataFinal must be 0 to 365 days"),
        ("dataInicial=20260101&dataFinal=20260102&tamanhoPagina=51", "400 tamanhoPagina must be 10 to 50"),
        ("dataInicial=20260101&dataFinal=20260102&uf=XX", "400 uf must be one of"),
        (
            "dataInicial=20260101&dataFinal=20260102&codigoModalidadeContratacao=",
            "400 codigoModalidadeContratacao must be 1 to 99",
        ),
    ],
)
def test_pncp__invalid_query__gets_a_status_and_the_name_of_the_parameter(
    server: ProcurementServer, query: str, message: str
) -> None:
    rest = "&codigoModalidadeContratacao=6&pagina=1&uf=SP&tamanhoPagina=50"
    added = "&".join(part for part in rest.split("&") if part.split("=")[0] not in query)
    status, body = fetch(f"{server.pncp.url}/api/consulta/v1/contratacoes/publicacao?{query}&{added}")
    assert f"{status} {body['message']}".startswith(message)


def test_pcp__one_day__lists_all_ufs_ten_a_page(server: ProcurementServer) -> None:
    _, first = pcp(server.pcp)
    pages = [pcp(server.pcp, page + 1)[1] for page in range(first["pageCount"])]
    items = [item for page in pages for item in page["result"]]
    assert len({item["codigoLicitacao"] for item in items}) == len(items) == first["total"]
    assert len({item["unidadeCompradora"]["uf"] for item in items}) > 20
    assert 1 < first["pageCount"] <= 20
    assert [page["nextPage"] for page in (pages[0], pages[-1])] == [2, None]
    assert (pages[0]["limit"], pages[1]["offset"], pages[1]["previousPage"]) == (10, 10, 1)
    assert pcp(server.pcp, first["pageCount"] + 1)[1]["result"] == []


def test_pcp__invalid_query__says_so_and_an_unknown_path_is_a_404(server: ProcurementServer) -> None:
    assert pcp(server.pcp, kind="2")[0] == 400
    assert pcp(server.pcp, day="2026-02-30")[0] == 422
    assert fetch(f"{server.pcp.url}/elsewhere")[0] == 404


def test_failing_days__listings_that_begin_on_them__get_a_500(server: ProcurementServer) -> None:
    for portal in (server.pncp, server.pcp):
        portal.set(failing_days=["2026-01-01"])
    assert (pncp(server.pncp)[0], pcp(server.pcp)[0]) == (500, 200)
    assert pcp(server.pcp, day="2026-01-01")[0] == 500
    assert server.pcp.as_dict()["failing_days"] == ["2026-01-01"]


def test_rate__exceeded__is_refused_with_retry_after() -> None:
    with ProcurementServer(pncp_rate=2, pcp_rate=None) as server:
        responses = [pncp(server.pncp) for _ in range(5)]
        assert [status for status, _ in responses[:3]] == [200] * 3
        refused = [body["after"] for status, body in responses if status == 429]
        assert refused
        assert set(refused) == {"1"}
        assert server.pncp.refused == len(refused)


def test_modes__each__fails_in_its_own_way(server: ProcurementServer) -> None:
    server.pncp.set(mode="flaky")
    assert [pncp(server.pncp)[0] for _ in range(4)] == [500, 200, 500, 200]
    server.pncp.set(mode="rate-limited")
    assert pncp(server.pncp)[1]["after"] == "2"
    server.pncp.set(mode="slow", delay=0.01)
    assert pncp(server.pncp)[0] == 200
    server.pncp.set(mode="dead")
    with pytest.raises((URLError, HTTPException, ConnectionError)):
        pncp(server.pncp)
    server.pncp.set(mode="ok", failing_ufs=["MA"])
    assert [pncp(server.pncp, uf)[0] for uf in ("MA", "SP")] == [500, 200]
    assert server.pncp.requests_by_uf == {"SP": 6, "MA": 1}
    assert pcp(server.pcp)[0] == 200


def test_portals__last_possible_day__is_answered(server: ProcurementServer) -> None:
    days = "dataInicial=99991231&dataFinal=99991231&codigoModalidadeContratacao=6"
    path = f"/api/consulta/v1/contratacoes/publicacao?{days}&uf=SP&pagina=1&tamanhoPagina=50"
    assert fetch(server.pncp.url + path)[0] in (200, 204)
    assert pcp(server.pcp, day="9999-12-31")[0] == 200


def test_control__over_http__changes_and_shows_the_mode(server: ProcurementServer) -> None:
    switch = json.dumps({"mode": "slow", "delay": 0, "failing_ufs": ["AC"]}).encode()
    status, shown = fetch(f"{server.url}/control/pcp", switch, "PUT")
    assert status == 200
    assert (shown["pcp"]["mode"], server.pcp.mode, server.pcp.delay) == ("slow", "slow", 0)
    assert fetch(f"{server.url}/control")[1]["pcp"]["failing_ufs"] == ["AC"]
    assert fetch(f"{server.url}/control/unknown", b"{}", "PUT")[0] == 404


@pytest.mark.parametrize(
    "switch",
    [
        b'{"mode": "sad"}',
        b'{"delay": -1}',
        b'{"failing_ufs": ["XX"]}',
        b'{"failing_days": ["x"]}',
        b'{"speed": 1}',
        b"[",
        b"1",
    ],
)
def test_control__invalid_body__is_a_400_and_changes_nothing(
    server: ProcurementServer, switch: bytes
) -> None:
    assert fetch(f"{server.url}/control/pncp", switch, "PUT")[0] == 400
    assert server.pncp.mode == MODES[0]


def test_process__sigterm__ends_after_serving() -> None:
    port = free_port()
    command = [sys.executable, "-m", "comporta.testing.portals", "--port", str(port), "--seed", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == f"pncp http://127.0.0.1:{port}/pncp\n"
        assert fetch(f"http://127.0.0.1:{port}/control")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert (process.wait(60), process.stderr.read()) == (0, "")


def test_main__signal__returns_without_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
        main(["--port", str(free_port())])
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert "control http" in capsys.readouterr().out


def test_portal__rate_exceeded__counts_all_requests_and_the_excess() -> None:
    with ProcurementServer(pncp_rate=2.0, latency=0.01) as server:
        statuses = [pncp(server.pncp)[0] for _ in range(20)]
        server.pncp.set(mode="rate-limited")
        statuses.append(pncp(server.pncp)[0])
        seen = fetch(f"{server.url}/control")[1]["pncp"]
    assert seen["refused"] == statuses.count(429)
    assert seen["too_many"] == seen["refused"] - 1 > 0
    assert 0 < seen["recent"] <= seen["busiest"] <= 21
