"""``comporta upstream``: shows upstreams, and changes them for all workers: circuit, limit and pause.

These are the actions of the dashboard. With ``--state`` the command changes the store itself, with
``--service`` it calls the admin routes of a service.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from comporta.cli.completion import complete_state
from comporta.cli.console import json_option, print_json, print_rows, print_table, printable
from comporta.cli.state_option import doctor_command, inspect_store, shared_url, state_url
from comporta.cli.upstream_tables import circuit_text, limit_text, list_table, show_table
from comporta.cli.upstream_targets import (
    ServiceTarget,
    StateTarget,
    UpstreamTarget,
    unpublished_summary,
)
from comporta.errors import StateError
from comporta.fleet.overrides import Summary, find_limit, with_burst
from comporta.limits.overrides.record import PAUSE_US_MAX

F = TypeVar("F", bound=Callable[..., Any])

TOKEN_VARIABLE = "COMPORTA_SERVICE_ADMIN_TOKEN"  # noqa: S105 - the name of a variable

_PAUSE_SECONDS_MAX = PAUSE_US_MAX / 1e6
_EPILOG = (
    "Without --state and --service, the command uses COMPORTA_STATE, or else REDIS_URL, or else shared://. "
    f"--service needs the admin token of the service: in the variable {TOKEN_VARIABLE}, or in a file that "
    "--token-file names."
)

_name_argument = click.argument("name")
_reason_option = click.option("--reason", default="", metavar="TEXT", help="Show this reason to everyone.")
_unlisted_option = click.option(
    "--unlisted", is_flag=True, help="Change NAME even if no worker publishes an upstream of this name."
)


def _target_options(command: F) -> F:
    """Add the options that say where the upstreams are."""
    for option in (
        json_option,
        click.option(
            "--token-file", metavar="FILE", type=click.Path(), help="Read the admin token from this file."
        ),
        click.option(
            "--service", metavar="URL", help="Call the service at this address instead of the state."
        ),
        click.option("--state", metavar="STATE", shell_complete=complete_state, help="Use this state."),
    ):
        command = option(command)
    return command


@click.group()
def upstream() -> None:
    """Show upstreams, and change their circuit, limit or pause."""


@upstream.command("list", epilog=_EPILOG)
@_target_options
def list_upstreams(as_json: bool, **where: str | None) -> None:
    """List the upstreams and what is unusual about them."""
    with _open_target(**where) as target:
        found = target.summaries()
    empty_message = "No worker has published an upstream in the last 30 s."
    print_rows(found, lambda: list_table(found), empty_message, as_json=as_json)


@upstream.command(epilog=_EPILOG)
@_name_argument
@_target_options
def show(name: str, as_json: bool, **where: str | None) -> None:
    """Show one upstream."""
    with _open_target(**where) as target:
        found = _find(target, name)
    if as_json:
        print_json(found)
    else:
        print_table(show_table(found))


@upstream.command("open", epilog=_EPILOG)
@_name_argument
@_reason_option
@_unlisted_option
@_target_options
def open_circuit(name: str, reason: str, unlisted: bool, as_json: bool, **where: str | None) -> None:
    """Hold the circuit of an upstream open.

    No worker calls the upstream until you close or reset the circuit.
    """
    _force(name, "open", reason, unlisted=unlisted, as_json=as_json, where=where)


@upstream.command(epilog=_EPILOG)
@_name_argument
@_reason_option
@_unlisted_option
@_target_options
def close(name: str, reason: str, unlisted: bool, as_json: bool, **where: str | None) -> None:
    """Hold the circuit of an upstream closed.

    Failures do not open it until you open or reset it.
    """
    _force(name, "closed", reason, unlisted=unlisted, as_json=as_json, where=where)


@upstream.command(epilog=_EPILOG)
@_name_argument
@_unlisted_option
@_target_options
def reset(name: str, unlisted: bool, as_json: bool, **where: str | None) -> None:
    """Close the circuit of an upstream and forget its failures.

    From then on the breaker decides again.
    """
    with _open_target(**where) as target:
        before = _find_breaker(target, name, unlisted=unlisted)
        target.reset(before)
        closed = {"phase": "closed", "failures": 0, "reason": "", "until": None}
        after = {**target.with_overrides(before), **closed}
    text = f"{circuit_text(before)} → closed. Failures count from 0."
    _print_result("reset", before, after, text, as_json=as_json)


@upstream.command(epilog=_EPILOG)
@_name_argument
@click.option(
    "--for",
    "seconds",
    metavar="SECONDS",
    type=click.FloatRange(0.001, _PAUSE_SECONDS_MAX),
    default=60.0,
    show_default=True,
    help="Pause for this many seconds, at most a day.",
)
@_unlisted_option
@_target_options
def pause(name: str, seconds: float, unlisted: bool, as_json: bool, **where: str | None) -> None:
    """Pause all calls to an upstream for some time.

    A pause that already ends later is not shortened.
    """
    _set_pause("pause", name, seconds, unlisted=unlisted, as_json=as_json, where=where)


@upstream.command(epilog=_EPILOG)
@_name_argument
@_unlisted_option
@_target_options
def resume(name: str, unlisted: bool, as_json: bool, **where: str | None) -> None:
    """End the pause of an upstream."""
    _set_pause("resume", name, 0.0, unlisted=unlisted, as_json=as_json, where=where)


@upstream.command(epilog=_EPILOG)
@_name_argument
@click.argument("limit", required=False)
@click.option("--revoke", is_flag=True, help="Return to the configured limit.")
@click.option(
    "--limit-name", metavar="LIMIT_NAME", help="Change the limit of this name instead of the first one."
)
@_unlisted_option
@_target_options
def limit(
    name: str,
    limit: str | None,
    *,
    revoke: bool,
    limit_name: str | None,
    unlisted: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Override a limit of an upstream for all workers.

    The override lasts until you change or revoke it. LIMIT is text such as 5/s or "100/minute burst 20". A
    limit with a burst of its own keeps it, unless LIMIT has one.
    """
    if (limit is None) != revoke:
        raise click.UsageError("give either LIMIT, such as 5/s, or --revoke")
    with _open_target(**where) as target:
        before = _find(target, name, unlisted=unlisted)
        part = _find_limit(before, limit_name)
        target.set_limit(before, None if limit is None else _with_burst(limit, part), limit_name)
        after = target.with_overrides(before)
    named = "" if limit_name is None else f" --limit-name {limit_name}"
    hint = "" if limit is None else f" To revoke it: `comporta upstream limit {name} --revoke{named}`."
    change = f"{limit_text(part)} → {limit_text(find_limit(after, limit_name))}"
    text = f"limit{'' if limit_name is None else f' {limit_name}'} {change}.{hint}"
    _print_result("revoke" if limit is None else "limit", before, after, text, as_json=as_json)


def _force(
    name: str, how: str, reason: str, *, unlisted: bool, as_json: bool, where: dict[str, str | None]
) -> None:
    with _open_target(**where) as target:
        before = _find_breaker(target, name, unlisted=unlisted)
        target.force(before, how, reason)
        after = target.with_overrides(before)
    hint = f"To end that: `comporta upstream reset {name}`."
    text = f"{circuit_text(before)} → {circuit_text(after)}. {hint}"
    _print_result("open" if how == "open" else "close", before, after, text, as_json=as_json)


def _set_pause(
    action: str, name: str, seconds: float, *, unlisted: bool, as_json: bool, where: dict[str, str | None]
) -> None:
    with _open_target(**where) as target:
        before = _find(target, name, unlisted=unlisted)
        target.pause(before, seconds)
        after = target.with_overrides(before)
    if seconds:
        text = f"paused for {after['paused']:.0f} s. To end that: `comporta upstream resume {name}`."
    else:
        text = "resumed." if before["paused"] else "was not paused; nothing changed."
    _print_result(action, before, after, text, as_json=as_json)


def _print_result(action: str, before: Summary, after: Summary, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"action": action, "before": before, "after": after})
    else:
        click.echo(f"{printable(after['name'])}: {printable(text)}")


@contextmanager
def _open_target(state: str | None, service: str | None, token_file: str | None) -> Iterator[UpstreamTarget]:
    """Open the state or the service; report every error in one sentence."""
    if service is not None:
        if state is not None:
            raise click.UsageError("give either --state or --service")
        yield ServiceTarget(service, _read_token(token_file))
        return
    url = state_url(state)
    shared = shared_url(url)
    if url.startswith("memory://"):
        raise click.UsageError("memory:// exists only inside one process: use shared:// or a server")
    if shared is not None and not os.path.lexists(shared.path):  # opening it would create it
        raise click.ClickException(f"No process on this machine uses shared://{shared.name}.")
    with inspect_store(url) as (store, _):
        try:
            yield StateTarget(store)
        except StateError as error:
            message = str(error).rstrip(".")
            raise click.ClickException(f"{message}. To diagnose it, run `{doctor_command(url)}`.") from None


def _read_token(path: str | None) -> str:
    token = os.environ.get(TOKEN_VARIABLE, "") if path is None else Path(path).read_text().strip()
    if not token or not (token.isascii() and token.isprintable()):
        raise click.UsageError(
            f"--service needs the admin token: set {TOKEN_VARIABLE}, or name a file with --token-file"
        )
    return token


def _find(target: UpstreamTarget, name: str, *, unlisted: bool = False) -> Summary:
    found = {each["name"]: each for each in target.summaries()}
    if name in found:
        return found[name]
    if unlisted and isinstance(target, StateTarget):
        return target.with_overrides(unpublished_summary(name))
    known = printable(", ".join(sorted(found)) or "none")
    raise click.BadParameter(
        f"must be an upstream that workers published in the last 30 s ({known:.500}), got {name!r:.100}",
        param_hint="NAME",
    )


def _find_breaker(target: UpstreamTarget, name: str, *, unlisted: bool) -> Summary:
    found = _find(target, name, unlisted=unlisted)
    if found["phase"] is None and not unlisted:
        raise click.BadParameter(f"must be an upstream with a breaker, got {name!r:.100}", param_hint="NAME")
    return found


def _find_limit(found: Summary, limit_name: str | None) -> Summary:
    try:
        return find_limit(found, limit_name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--limit-name") from None


def _with_burst(text: str, part: Summary) -> str:
    try:
        return with_burst(text, part)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="LIMIT") from None
