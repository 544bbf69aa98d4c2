"""``comporta upstream`` shows and changes upstreams for all workers, in a state or through a service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cli_runner import run, run_json, run_process
from tests.cli.sample_fleet import fleet
from tests.service.harness import CLIENT, ServedProcess, serve_process, wait_until

from comporta.breaker.config import BreakerConfig
from comporta.cli.upstream_targets import unpublished_summary
from comporta.errors import CircuitOpenError, LimitReachedError
from comporta.fleet import FleetCounters, FleetPublisher
from comporta.fleet.event_journal import JOURNAL, merge_events
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.stores.journal import ReadJournal
from comporta.stores.registry import close_stores, open_store
from comporta.stores.shared.directory import directory_path
from comporta.testing import Server
from comporta.testing.http_server import HttpRequest, HttpServer, json_response
from comporta.upstream.upstream import Upstream

TOKEN = "1234567890" * 3


@pytest.fixture(autouse=True)
def _open_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the stores of this process open, which a command closes at its end: a worker uses them, too."""
    monkeypatch.setattr("comporta.cli.state_option.close_stores", lambda: None)


@pytest.fixture
def url(shared_name: str) -> str:
    """Return a state whose locks have all the time of a busy machine."""
    return f"shared://{shared_name}?lock_timeout=10"


@pytest.fixture
def state(url: str) -> Iterator[str]:
    """Yield a state with a healthy upstream, ``well``, and one whose circuit is open, ``dead``."""
    with fleet(url):
        yield url


@contextmanager
def publish(upstream: Upstream) -> Iterator[None]:
    """Publish the status of one upstream."""
    publisher = FleetPublisher(upstream.store, {upstream.name: upstream}, FleetCounters())
    publisher.start()
    try:
        publisher.publish()
        yield
    finally:
        publisher.close()
        close_stores()


class OtherServer(HttpServer):
    """A server that is not the service: it answers with a page."""

    async def _respond(self, request: HttpRequest) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"


class BrokenServer(HttpServer):
    """A proxy without a server behind it."""

    async def _respond(self, request: HttpRequest) -> bytes:
        return json_response(502, ["no detail"])


def act(*arguments: str) -> dict[str, Any]:
    """Run an action with ``--json`` and return what it printed."""
    ran = run("upstream", *arguments, "--json")
    assert ran.exit_code == 0, ran.output
    printed: dict[str, Any] = json.loads(ran.stdout)
    return printed


def worker_on(url: str, name: str = "well", limit: str | LimitConfig = "100/s") -> Upstream:
    """Return an upstream of a worker that has just read the state of its circuit."""
    upstream = Upstream(name, limit, state=url, retry=False, max_wait=0)
    upstream.sync.get_state()
    return upstream


def summary_of(name: str, state: str) -> dict[str, Any]:
    """Return an upstream as the next command shows it."""
    return next(each for each in run_json("upstream", "list", "--state", state) if each["name"] == name)


def test_list__fleet_with_an_open_circuit__says_why_and_until_when(state: str) -> None:
    lines = run("upstream", "list", "--state", state).stdout.splitlines()
    assert lines[0].split() == ["upstream", "circuit", "limit", "notes"]
    assert lines[2].split()[:3] == ["dead", "open", "100/s"]
    assert "3 failures in a row, the last: ConnectionResetError: HTTP 503" in lines[2]
    assert lines[3].split() == ["well", "closed", "100/s"]


def test_show__healthy_upstream__lists_circuit_limit_and_pause(state: str) -> None:
    shown = run("upstream", "show", "well", "--state", state).stdout
    for line in (
        "circuit      closed",
        "limit        100/s burst 100",
        "configured   100/s",
        "paused       no",
    ):
        assert line in shown
    assert "failures     0 in a row, opens at 5" in shown
    assert act("show", "well", "--state", state)["strategy"] == "token_bucket"


def test_open_and_reset__upstream__binds_the_next_call_of_every_worker(state: str) -> None:
    opened = run("upstream", "open", "well", "--reason", "maintenance", "--state", state)
    assert opened.stdout == (
        "well: closed → held open by an operator (maintenance). "
        "To end that: `comporta upstream reset well`.\n"
    )
    assert "held open by an operator (maintenance)" in run("upstream", "list", "--state", state).stdout
    assert "circuit      held open" in run("upstream", "show", "well", "--state", state).stdout
    with pytest.raises(CircuitOpenError):
        worker_on(state).sync.call(lambda: None)
    reset = act("reset", "well", "--state", state)
    assert (reset["before"]["forced"], reset["after"]["forced"], reset["after"]["phase"]) == (
        "open",
        None,
        "closed",
    )
    worker_on(state).sync.call(lambda: None)


def test_close__dead_upstream__is_held_closed_until_reset(state: str) -> None:
    done = act("close", "dead", "--state", state)
    assert (done["action"], done["before"]["phase"], done["after"]["phase"]) == ("close", "open", "closed")
    assert summary_of("dead", state)["forced"] == "closed"
    shown = run("upstream", "show", "dead", "--state", state).stdout
    assert "held closed by an operator" in shown
    assert "opens at" not in shown
    assert run("upstream", "reset", "dead", "--state", state).stdout.endswith(
        "→ closed. Failures count from 0.\n"
    )
    assert summary_of("dead", state)["forced"] is None


def test_limit__set_and_revoked__shows_before_and_after(state: str) -> None:
    set_ = run("upstream", "limit", "well", "5/s", "--state", state)
    assert set_.stdout == (
        "well: limit 100/s burst 100 → 5/s burst 5. To revoke it: `comporta upstream limit well --revoke`.\n"
    )
    assert worker_on(state).limiter.sync.stats().limit == 5
    assert (
        "limit set by an operator (100/s is configured)" in run("upstream", "list", "--state", state).stdout
    )
    revoked = run("upstream", "limit", "well", "--revoke", "--state", state)
    assert revoked.stdout.startswith("well: limit 5/s burst 5 → 100/s")
    assert worker_on(state).limiter.sync.stats().limit == 100


@pytest.mark.parametrize(
    ("configured", "given", "after"),
    [
        ("10/s burst 3", "5/s", "5/s burst 3"),
        ("10/s burst 3", "5/s burst 8", "5/s burst 8"),
        ("120/minute", "60/minute", "1/s burst 60"),
        (LimitConfig(10, 50, 10, LimitStrategy.FIXED_WINDOW), "20/10s", "2/s burst 20"),
    ],
)
def test_limit__without_a_burst__keeps_a_burst_of_its_own(
    url: str, configured: str | LimitConfig, given: str, after: str
) -> None:
    with publish(worker_on(url, "one", configured)):
        done = run("upstream", "limit", "one", given, "--state", url)
        assert f"→ {after}." in done.stdout
        assert worker_on(url, "one", configured).limiter.sync.stats().limit == int(after.rpartition(" ")[2])


def test_limit__upstream_with_named_limits__changes_the_first(url: str) -> None:
    limits = {"calls": "10/s", "words": "1000/minute"}
    with publish(Upstream("two", limits, state=url)):
        act("limit", "two", "5/s", "--state", url)
        assert Upstream("two", limits, state=url).sync.get_state().original == 5


def test_limit__further_limit_of_an_upstream__is_changed_shown_and_revoked(url: str) -> None:
    limits = {"calls": "10/s", "words": "1000/minute"}
    upstream = Upstream("two", limits, state=url)
    which = ("--limit-name", "words", "--state", url)
    with publish(upstream):
        done = run("upstream", "limit", "two", "700/minute", *which)
        assert done.stdout == (
            "two: limit words 16.67/s burst 1000 → 11.67/s burst 700. "
            "To revoke it: `comporta upstream limit two --revoke --limit-name words`.\n"
        )
        assert [limit.limit_text for limit in upstream.sync.get_state().limits] == ["10/s", "700/minute"]
        assert "limit words set by an operator (1000/minute is configured)" in list_line("two", url)
        shown = run("upstream", "show", "two", "--state", url).stdout
        assert "limit words  11.67/s burst 700 (1000/minute is configured)" in shown
        wrong = run("upstream", "limit", "two", "5/s", "--limit-name", "nix", "--state", url)
        assert "must be one of calls, words, got 'nix'" in wrong.stderr
        assert act("limit", "two", "--revoke", *which)["after"]["limits"][1]["limit_text"] == "1000/minute"
        assert list_line("two", url) == "two closed 10/s"
        words = upstream.limits.limiters["words"] if upstream.limits else upstream.limiter
        words.sync.pause(60)
        assert act("resume", "two", "--state", url)["before"]["paused"] > 0
        assert words.sync.stats().paused == 0


def test_limit__list_of_limits__names_the_second_after_the_upstream(url: str) -> None:
    upstream = Upstream("two", "10/s; 1000/minute", state=url)
    with publish(upstream):
        act("limit", "two", "700/minute", "--limit-name", "two.2", "--state", url)
        assert [limit.limit_text for limit in upstream.sync.get_state().limits] == ["10/s", "700/minute"]


def test_limit__name_for_an_upstream_with_one__is_a_usage_error(state: str) -> None:
    ran = run("upstream", "limit", "well", "5/s", "--limit-name", "calls", "--state", state)
    assert ran.exit_code == 2
    assert "must be left out, because well has one limit, got 'calls'" in ran.stderr


def test_show__upstream_that_failed__lists_the_last_failures(state: str) -> None:
    shown = run("upstream", "show", "dead", "--state", state).stdout.splitlines()
    failures = [line for line in shown if "ConnectionResetError: HTTP 503" in line]
    assert re.match(
        r" last failures +\d\d:\d\d:\d\d ConnectionResetError: HTTP 503 \(\S+:\d+\)", failures[-3]
    )
    assert len(act("show", "dead", "--state", state)["last_failures"]) == 3


def list_line(name: str, state: str) -> str:
    """Return the line of an upstream in the list, with single spaces."""
    lines = run("upstream", "list", "--state", state).stdout.splitlines()
    return " ".join(next(line for line in lines if line.split()[:1] == [name]).split())


def test_pause_and_resume__upstream__stops_and_admits_calls(state: str) -> None:
    paused = run("upstream", "pause", "well", "--for", "600", "--state", state)
    assert re.fullmatch(
        r"well: paused for \d+ s\. To end that: `comporta upstream resume well`\.\n", paused.stdout
    )
    assert "paused for " in run("upstream", "list", "--state", state).stdout
    with pytest.raises(LimitReachedError):
        worker_on(state).sync.call(lambda: None)
    assert run("upstream", "resume", "well", "--state", state).stdout == "well: resumed.\n"
    worker_on(state).sync.call(lambda: None)
    again = run("upstream", "resume", "well", "--state", state)
    assert again.stdout == "well: was not paused; nothing changed.\n"


def test_limit__slowed_down_by_429__is_shown_with_both_rates(state: str) -> None:
    worker = worker_on(state)
    assert worker.degradation is not None
    worker.degradation.sync.record_error()
    assert "slowed down from 100/s" in run("upstream", "list", "--state", state).stdout
    assert "100/s burst 100, slowed down to" in run("upstream", "show", "well", "--state", state).stdout


def test_action__in_a_state__is_an_event_with_the_user(state: str) -> None:
    for verb in ("open", "reset"):
        act(verb, "well", "--state", state)
    entries = open_store(state).primary.apply(ReadJournal(JOURNAL))
    texts = [event["text"] for event in merge_events(entries)]
    assert sum(text.startswith("open breaker (by ") for text in texts) == 1
    assert sum(text.startswith("reset breaker (by ") for text in texts) == 1


def test_action__without_a_user_name__is_logged(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("no user")

    monkeypatch.setattr("getpass.getuser", fail)
    assert act("pause", "well", "--state", state)["after"]["paused"] > 0


def test_unknown_name__is_refused_unless_unlisted(state: str) -> None:
    refused = run("upstream", "open", "wel", "--state", state)
    assert refused.exit_code == 2
    assert "published in the last 30 s (dead, well), got 'wel'" in refused.stderr
    done = act("open", "idle", "--unlisted", "--state", state)
    assert done["after"]["forced"] == "open"
    assert act("limit", "idle", "5/s", "--unlisted", "--state", state)["after"]["original"] == 5
    text = run("upstream", "limit", "idle", "--revoke", "--unlisted", "--state", state).stdout
    assert text == "idle: limit 5/s burst 5 → unknown.\n"
    assert unpublished_summary("x")["phase"] is None


def test_upstream_without_a_breaker__is_not_opened(url: str) -> None:
    with publish(Upstream("plain", "10/s", breaker=False, state=url)):
        refused = run("upstream", "open", "plain", "--state", url)
        assert "must be an upstream with a breaker, got 'plain'" in refused.stderr
        assert "no breaker" in run("upstream", "list", "--state", url).stdout
        assert "circuit      no breaker" in run("upstream", "show", "plain", "--state", url).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["limit", "well"], "give either LIMIT, such as 5/s, or --revoke"),
        (["limit", "well", "5/s", "--revoke"], "give either LIMIT, such as 5/s, or --revoke"),
        (["list", "--state", "shared://x", "--service", "http://h"], "give either --state or --service"),
        (["list", "--state", "memory://"], "memory:// exists only inside one process"),
        (["list", "--service", "http://127.0.0.1:1"], "set COMPORTA_SERVICE_ADMIN_TOKEN, or name a file"),
    ],
)
def test_wrong_options__are_usage_errors(arguments: list[str], message: str) -> None:
    ran = run("upstream", *arguments)
    assert ran.exit_code == 2
    assert message in ran.stderr


def test_limit__text_that_is_no_limit__names_the_expected_form(state: str) -> None:
    ran = run("upstream", "limit", "well", "fast", "--state", state)
    assert ran.exit_code == 2
    assert "Invalid value for LIMIT: limit must look like '10/s'" in ran.stderr


def test_list__unused_shared_name__creates_nothing(shared_name: str) -> None:
    ran = run("upstream", "list", "--state", f"shared://{shared_name}")
    assert ran.exit_code == 1
    assert ran.stderr == f"Error: No process on this machine uses shared://{shared_name}.\n"
    assert not Path(directory_path(shared_name)).exists()


def test_list__server_without_upstreams__says_so(server: Server) -> None:
    server.command("FLUSHALL")
    ran = run("upstream", "list", "--state", server.url)
    assert ran.stdout == "No worker has published an upstream in the last 30 s.\n"


def test_list__unreachable_server__suggests_the_doctor() -> None:
    ran = run_process("upstream", "list", "--state", "redis://127.0.0.1:1/0")
    assert ran.returncode == 1
    assert "run `comporta doctor redis://127.0.0.1:1/0`" in ran.stderr


def action_texts(service: ServedProcess) -> list[str]:
    """Return the texts of what operators did, as the dashboard shows them."""
    events = CLIENT.get(f"{service.address}/v1/dashboard").json()["events"]
    return [event["text"] for event in events if event["kind"] == "admin"]


def test_service__every_verb__goes_through_the_admin_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPORTA_SERVICE_ADMIN_TOKEN", TOKEN)
    with serve_process(tmp_path, admin_token=TOKEN) as service:
        where = ("--service", service.address)
        assert {each["name"] for each in run_json("upstream", "list", *where)} >= {"pncp", "pcp"}
        opened = act("open", "pncp", "--reason", "maintenance", *where)
        assert (opened["before"]["forced"], opened["after"]["forced"]) == (None, "open")
        assert act("close", "pncp", *where)["after"]["forced"] == "closed"
        assert act("reset", "pncp", *where)["after"]["forced"] is None
        assert act("limit", "pncp", "5/s", *where)["after"]["original"] == 5
        assert act("limit", "pncp", "--revoke", *where)["after"]["original"] == 10
        assert act("pause", "pncp", *where)["after"]["paused"] > 0
        assert act("resume", "pncp", *where)["after"]["paused"] == 0
        unknown = run("upstream", "open", "nix", "--unlisted", *where)
        assert "got 'nix'" in unknown.stderr
        wait_until(lambda: "resume (by admin_token)" in action_texts(service))
        assert action_texts(service).count("open breaker maintenance (by admin_token)") == 1
        token_file = tmp_path / "token"
        token_file.write_text("another-token-of-operators\n")
        denied = run("upstream", "list", *where, "--token-file", str(token_file))
    assert denied.exit_code == 1
    assert denied.stderr.startswith(f"Error: {service.address}: 401, the admin token must be sent")
    assert TOKEN not in denied.output


def is_rejected(upstream: Upstream) -> bool:
    """Whether the circuit rejects a call; a worker that uses it already reads changes in the background."""
    try:
        upstream.sync.call(lambda: None)
    except CircuitOpenError:
        return True
    return False


@pytest.fixture
def service(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedProcess]:
    """Run a service on the state of this process, which is then another program."""
    monkeypatch.setenv("COMPORTA_SERVICE_ADMIN_TOKEN", TOKEN)
    with serve_process(tmp_path, admin_token=TOKEN, COMPORTA_STATE=url) as started:
        yield started


def test_service__upstream_of_another_program__every_verb_binds_that_program(
    url: str, service: ServedProcess
) -> None:
    where = ("--service", service.address)
    breaker = BreakerConfig(threshold=2, cooldown_seconds=300)
    upstream = Upstream(
        "billing", {"calls": "5/s burst 3", "words": "1000/minute"}, state=url, breaker=breaker, retry=False
    )
    with publish(upstream):
        names = [each["name"] for each in run_json("upstream", "list", *where)]
        assert names == ["billing", "pcp", "pncp"]
        assert "limit calls  5/s burst 3" in run("upstream", "show", "billing", *where).stdout
        assert act("open", "billing", "--reason", "invoices", *where)["after"]["forced"] == "open"
        wait_until(lambda: is_rejected(upstream))
        assert act("close", "billing", *where)["after"]["forced"] == "closed"
        assert act("reset", "billing", *where)["after"]["forced"] is None
        wait_until(lambda: not is_rejected(upstream))
        words = ("--limit-name", "words", *where)
        assert (
            act("limit", "billing", "700/minute", *words)["after"]["limits"][1]["limit_text"] == "700/minute"
        )
        assert act("limit", "billing", "8/s", *where)["after"]["limit_text"] == "8/s burst 3"
        limits = [limit.limit_text for limit in upstream.sync.get_state().limits]
        assert limits == ["8/s burst 3", "700/minute"]
        act("limit", "billing", "--revoke", *words)
        act("limit", "billing", "--revoke", *where)
        limits = [limit.limit_text for limit in upstream.sync.get_state().limits]
        assert limits == ["5/s burst 3", "1000/minute"]
        assert act("pause", "billing", *where)["after"]["paused"] > 0
        assert upstream.sync.get_state().paused > 0
        assert act("resume", "billing", *where)["after"]["paused"] == 0
        assert upstream.sync.get_state().paused == 0
        wait_until(lambda: "resume (by admin_token)" in action_texts(service))
        assert action_texts(service).count("open breaker invoices (by admin_token)") == 1


def test_service__wrong_request_for_an_upstream_of_another_program__is_refused(
    url: str, service: ServedProcess
) -> None:
    def put(path: str, body: dict[str, Any]) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {TOKEN}"}
        reply = CLIENT.put(f"{service.address}/v1/admin/{path}", json=body, headers=headers)
        return reply.status_code, reply.json()["detail"]

    with publish(Upstream("plain", "10/s", breaker=False, state=url)):
        opened = run("upstream", "open", "plain", "--unlisted", "--service", service.address)
        assert "404, plain has no breaker" in opened.stderr
        detail = "limit_name must be left out, because plain has one limit, got 'words'"
        assert put("limits/plain?limit_name=words", {"limit": "5/s"}) == (404, detail)
        status, detail = put("limits/plain", {"limit": "fast"})
        assert (status, detail[:28]) == (422, "limit must look like '10/s',")
        audit = CLIENT.get(f"{service.address}/v1/admin/audit", headers={"authorization": f"Bearer {TOKEN}"})
        assert audit.json() == {"actions": []}


def test_service__unreachable_or_another_server__is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_SERVICE_ADMIN_TOKEN", TOKEN)
    ran = run("upstream", "list", "--service", "http://127.0.0.1:1")
    assert ran.exit_code == 1
    assert ran.stderr.startswith("Error: http://127.0.0.1:1: ")
    ran = run("upstream", "list", "--service", "127.0.0.1:8000")
    assert "must be the address of a service, such as http://127.0.0.1:8000" in ran.stderr
    with OtherServer() as other:
        ran = run("upstream", "list", "--service", other.url)
    assert ran.stderr == f"Error: {other.url} does not answer like the service of comporta\n"
    with BrokenServer() as broken:
        ran = run("upstream", "list", "--service", broken.url)
    assert ran.stderr == f"Error: {broken.url}: 502, -\n"
