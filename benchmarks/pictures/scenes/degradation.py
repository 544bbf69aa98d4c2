"""How the degradation rules follow a quota that falls and rises, from ``benchmarks/degradation.py``."""

from __future__ import annotations

from itertools import accumulate

from benchmarks.degradation import PHASES, Run, all_runs
from comporta.cli.sim_charts import Bars, Mark, Panel, Picture, Steps

_ENDS = float(sum(seconds for seconds, _ in PHASES))


def picture() -> Picture:
    """Simulate the phases with each rule."""
    return Picture(
        "A limit of 100/s, ten workers, and an upstream whose quota falls to 30/s and rises again",
        "Degradation follows a quota that it does not know: few calls are refused, most of the quota is "
        "used.",
        [_panel(name, run) for name, run in all_runs().items()],
        ends=_ENDS,
        every=30,
    )


def _panel(name: str, run: Run) -> Panel:
    starts = [0, *accumulate(seconds for seconds, _ in PHASES)]
    quota = [(float(start), float(quota)) for start, (_, quota) in zip(starts, PHASES, strict=False)]
    marks: list[Mark] = [
        Bars("accepted", "blue", run.accepted),
        Bars("refused", "orange", run.refused, below=run.accepted),
        Steps("the quota", "red", quota, dashed=True),
    ]
    title = f"{name}: {sum(run.accepted)} accepted, {sum(run.refused)} refused"
    return Panel(title, marks, 112, (0, 50, 100), 84)
