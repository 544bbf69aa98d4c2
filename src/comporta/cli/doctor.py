"""``comporta doctor``: is a state fit for limits, and if not, what is to be done.

The checks are in ``checks.py``, ``server_checks.py`` and ``shared_checks.py``; this file chooses among them
and prints what they found.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.table import Table
from rich.text import Text

from comporta.cli.checks import Finding, decisions, good, mind, workers
from comporta.cli.output import busy, json_option, plain, print_json, print_table, table_of
from comporta.cli.shared_checks import examine as examine_shared
from comporta.cli.states import STATE_HELP, Opened, opened, shared_url, state_argument, state_url
from comporta.stores.redis import RedisStore

_STYLES = {"good": "green", "mind": "yellow", "mend": "bold red"}


@click.command(epilog=STATE_HELP)
@state_argument
@json_option
def doctor(state: str | None, as_json: bool) -> None:
    """Check a state: what is good, what to mind, what to mend.

    Exits with 1 if something has to be mended. Whatever is tried, is tried on keys that are thrown away.
    """
    url = state_url(state)
    with busy("Checking"):
        findings = list(examined(url))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    elif len(findings) == 1 and findings[0].verdict == "mend":
        raise click.ClickException(findings[0].detail)
    else:
        print_table(_table(findings))
        click.echo(_summary(findings))
    if any(finding.verdict == "mend" for finding in findings):
        raise click.exceptions.Exit(1)


def examined(url: str) -> Iterator[Finding]:
    """Return the findings of whatever checks there are for this kind of state."""
    shared = shared_url(url)
    if shared is not None:
        yield from examine_shared(url, shared)
        return
    with opened(url) as found:
        if url.startswith("memory://"):
            yield good("state", "memory:// lives in this process alone: there is nothing to check")
        else:
            yield from _examined_server(found)


def _examined_server(found: Opened) -> Iterator[Finding]:
    store, deadline = found
    if type(store) is RedisStore:
        from comporta.cli.server_checks import examine  # noqa: PLC0415 - an extra

        yield from examine(store, deadline)
        return
    yield mind("servers", "a group of them: memory, eviction and clock are each one's own and not checked")
    yield decisions(store)
    yield workers(store)


def _table(findings: list[Finding]) -> Table:
    table = table_of("check", "result", "detail")
    for check, verdict, detail in findings:
        table.add_row(check, Text(verdict, style=_STYLES[verdict]), plain(detail))
    return table


def _summary(findings: list[Finding]) -> str:
    verdicts = [finding.verdict for finding in findings]
    to_mind, to_mend = verdicts.count("mind"), verdicts.count("mend")
    return f"{to_mind} to mind, {to_mend} to mend." if to_mind or to_mend else "All well."
