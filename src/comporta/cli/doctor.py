"""``comporta doctor``: checks whether a state is fit for limits, and says what to fix.

This module selects the checks for a kind of state and prints their findings. The checks themselves are in
``doctor_checks``, ``doctor_redis`` and ``doctor_shared``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import click
from rich.table import Table
from rich.text import Text

from comporta.cli.config import load_service_config
from comporta.cli.console import json_option, new_table, print_json, print_table, printable_text, show_spinner
from comporta.cli.doctor_checks import Finding, check_decisions, check_workers, ok, warn
from comporta.cli.doctor_shared import check_shared
from comporta.cli.state_option import (
    STATE_HELP,
    inspect_store,
    is_single_server,
    shared_url,
    state_argument,
    state_url,
)
from comporta.stores.base import Store
from comporta.stores.redis.store import RedisStore

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command(epilog=STATE_HELP)
@state_argument
@click.option(
    "--portals", is_flag=True, help="Query each portal of the service once instead, and report the result."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    help="Read the addresses of the portals from this TOML file. Default: COMPORTA_CONFIG.",
)
@json_option
def doctor(state: str | None, portals: bool, config_file: str | None, as_json: bool) -> None:
    """Check whether a state is fit for limits, and report what to fix.

    The command exits with 1 if a check fails. The checks use only temporary keys of their own.
    """
    if portals and state is not None:
        raise click.UsageError(f"--portals checks no state, got {state!r:.100}")
    with show_spinner("Checking"):
        findings = _portal_findings(config_file) if portals else list(findings_for(state_url(state)))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    elif len(findings) == 1 and findings[0].status == "fail":
        raise click.ClickException(findings[0].detail)
    else:
        print_table(_table(findings))
        click.echo(_summary(findings))
    if any(finding.status == "fail" for finding in findings):
        raise click.exceptions.Exit(1)


def _portal_findings(config_file: str | None) -> list[Finding]:
    from comporta.cli.doctor_portals import check_portals  # noqa: PLC0415 - an extra

    return check_portals(load_service_config(config_file))


def findings_for(url: str) -> Iterator[Finding]:
    """Run the checks for this kind of state, and yield their findings."""
    shared = shared_url(url)
    if shared is not None:
        yield from check_shared(url, shared)
        return
    with inspect_store(url) as (store, deadline):
        if url.startswith("memory://"):
            yield ok("state", "memory:// exists only inside each process: there is nothing to check")
        elif is_single_server(url):
            from comporta.cli.doctor_redis import check_server  # noqa: PLC0415 - an extra

            yield from check_server(cast(RedisStore, store), deadline)
        else:
            yield from check_engine(url.partition("://")[0], store)


def check_engine(scheme: str, store: Store) -> Iterator[Finding]:
    """Run the checks that work with every engine, such as a cluster or a third-party one."""
    yield warn("engine", f"doctor checks only decisions and workers on {scheme}://, not each server")
    yield check_decisions(store)
    yield check_workers(store)


def _table(findings: list[Finding]) -> Table:
    table = new_table("check", "result", "detail")
    for check, status, detail in findings:
        table.add_row(check, Text(status, style=_STYLES[status]), printable_text(detail))
    return table


def _summary(findings: list[Finding]) -> str:
    statuses = [finding.status for finding in findings]
    warnings, failures = statuses.count("warn"), statuses.count("fail")
    return f"Warnings: {warnings}, failures: {failures}." if warnings or failures else "All checks passed."
