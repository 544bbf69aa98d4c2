"""The summary of ``comporta run``: text or JSON, and the exit status."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import click

from comporta.cli import EXIT_INTERRUPTED
from comporta.cli.run_plan import RunPlan
from comporta.pipeline.run.progress import format_duration
from comporta.pipeline.run.report import COMPLETE, Report, quantity

EXIT_DEAD_LETTERS = 3


def print_report(report: Report, plan: RunPlan, *, as_json: bool) -> NoReturn:
    """Print the summary and exit."""
    if as_json:
        click.echo(json.dumps(_summary(report, plan)))
    else:
        for line in _report_lines(report, plan):
            click.echo(line)
    if report.ended != COMPLETE:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_DEAD_LETTERS if report.dead + report.dead_before else 0)


def _summary(report: Report, plan: RunPlan) -> dict[str, Any]:
    return {
        "ended": report.ended,
        "done": report.done,
        "written": report.written,
        "dead": report.dead,
        "dead_before": report.dead_before,
        "skipped": report.skipped,
        "retries": report.retries,
        "seconds": round(report.seconds, 3),
        **plan.summary(),
    }


def _report_lines(report: Report, plan: RunPlan) -> list[str]:
    before = f", {report.skipped:,} {plan.skipped_text}" if report.skipped else ""
    took = f"{format_duration(report.seconds)} ({report.rate:,.1f}/s)"
    lines = [
        f"{report.ended.capitalize()}: {quantity(report.done, 'item')} in {took}{before}.",
        f"{plan.output}: {quantity(report.written, 'row')}"
        + (f", {quantity(report.retries, 'retry', 'retries')}." if report.retries else "."),
    ]
    dead = report.dead + report.dead_before
    if dead:
        lines.append(plan.dead_letters_text(dead))
    if report.ended != COMPLETE and plan.continue_text:
        lines.append(plan.continue_text)
    return lines
