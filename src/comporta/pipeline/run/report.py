"""The report of a run: counts for people and programs, during the run and after it."""

from __future__ import annotations

from dataclasses import dataclass

COMPLETE, DRAINED, STOPPED = "complete", "drained", "stopped"


@dataclass(slots=True)
class Report:
    """The counts of one run.

    ``done`` counts the items that this run confirmed: ``written`` items, ``dead`` items (dead letters) and
    items without a row. ``skipped`` counts the items that an earlier run confirmed, and ``dead_before`` its
    dead letters. ``total`` is the approximate number of items, if known. ``ended`` is ``complete``,
    ``drained`` or ``stopped``, and empty during the run. ``draining``: the run starts no more items.
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
    draining: bool = False

    @property
    def rate(self) -> float:
        """Items done per second since the run began."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> int | None:
        """The approximate number of items that are left, if known."""
        return None if self.total is None else max(0, self.total - self.skipped - self.done)

    @property
    def seconds_left(self) -> float | None:
        """The approximate time that is left, if it can be estimated."""
        is_unknown = self.left is None or self.rate == 0 or self.draining
        return None if is_unknown else (self.left or 0) / self.rate

    @property
    def done_text(self) -> str:
        """How many items are done, of how many: ``400 of about 1,000 done``."""
        of = "" if self.total is None else f" of about {self.total:,}"
        if self.ended == COMPLETE:
            of = ""
        return f"{self.skipped + self.done:,}{of} done"

    def __str__(self) -> str:
        parts = [self.done_text, f"{self.rate:,.1f}/s"]
        for number, one, several in ((self.retries, "retry", "retries"), (self.dead, "dead letter", None)):
            if number:
                parts.append(quantity(number, one, several))
        return ", ".join(parts)


def quantity(count: int, one: str, several: str | None = None) -> str:
    """Return a count with its noun: ``1 row``, ``1,200 rows``."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
