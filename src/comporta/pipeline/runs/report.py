"""How a run went, or goes: figures, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass

COMPLETE, DRAINED, STOPPED = "complete", "drained", "stopped"


@dataclass(slots=True)
class Report:
    """Figures of one run. ``skipped`` were done before it, by the checkpoint, and ``dead_before`` given up.

    ``dead`` are in the letters since it began.
    ``done`` are the items that are confirmed: written, given up to the letters, or with nothing to write.
    ``total`` is about how many there are, if that is known. ``ended`` says how: ``complete``, ``drained`` or
    ``stopped``; empty while it goes on.
    """

    name: str
    total: int | None = None
    skipped: int = 0
    done: int = 0
    written: int = 0
    dead: int = 0
    retries: int = 0
    dead_before: int = 0
    seconds: float = 0.0
    ended: str = ""

    @property
    def rate(self) -> float:
        """Items done a second, since the run began."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> int | None:
        """About how many are still to be done."""
        return None if self.total is None else max(0, self.total - self.skipped - self.done)

    @property
    def seconds_left(self) -> float | None:
        """About how long it will take, if that can be told."""
        return None if self.left is None or self.rate == 0 else self.left / self.rate

    def __str__(self) -> str:
        of = "" if self.total is None else f" of about {self.total:,}"
        parts = [f"{self.skipped + self.done:,}{of} done", f"{self.rate:,.1f}/s"]
        for what, number in (("retries", self.retries), ("dead letters", self.dead)):
            if number:
                parts.append(f"{number:,} {what}")
        return ", ".join(parts)
