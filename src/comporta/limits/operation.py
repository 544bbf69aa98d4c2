"""Deciding one limit, or several at once, as an operation that any store can apply.

Several limits in one operation are all or nothing: each must have room, or none is charged.

Twin: ``limit.lua`` over the strategies' own Lua files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from comporta.errors import StateError, StateTypeError
from comporta.limits.rule import Rule
from comporta.stores.base import Outage, Part, Script, State, key_text
from comporta.stores.lua import lua
from comporta.stores.naming import named

SPACE = "rate_limiter"
CHANGES = "rate_limiter_change"


class Answer(NamedTuple):
    """What one limit says.

    ``wait_us`` within the patience asked for means granted; ``recent``, what was granted in the last
    minute, is counted only for a look. ``paused_us`` is how long nothing will be granted, and ``original``
    the capacity that a degraded limit returns to.
    """

    wait_us: int
    capacity: int
    remaining: int
    retry_us: int
    reset_us: int
    recent: int
    paused_us: int = 0
    original: int = 0


class Question(NamedTuple):
    """One limit asked: ``amount`` above 0 takes, 0 looks, below 0 gives back.

    ``fallback`` is what to do when the shared state is out of reach (see ``share.py``), and ``known`` tells
    the rule that is in force then, as far as this process knows of operators' changes.
    """

    rule: Rule
    name: str
    key: str
    amount: int
    fallback: str = "share"
    known: Callable[[], Rule] | None = None


def answered(
    rule: Rule, state: State | None, now_us: int, wait_us: int, retry_us: int, *, looks: bool = False
) -> Answer:
    """Return what a limit says with a state that is to be kept, or is left as it is."""
    current, paused_us, original = rule.at(now_us)
    remaining, reset_us, recent = current.view(state, now_us)
    minute = recent if looks else 0
    return Answer(
        wait_us, current.numbers.capacity, remaining, retry_us, reset_us, minute, paused_us, original
    )


_FIELDS = len(Answer._fields)


STRATEGIES = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window")
"""In the order of their codes in ``limit.lua``, from 1."""


@cache
def script_for(codes: frozenset[int]) -> Script:
    """Return the script that knows just these strategies: what it defines, it pays for at each call."""
    names = [name for code, name in enumerate(STRATEGIES, 1) if code in codes]
    absent = [f"local {name}" for name in STRATEGIES if name not in names]

    def text() -> str:
        return "\n".join([lua("limits", "support", "traffic", *names), *absent, lua("limits", "limit")])

    return Script("limit:" + ",".join(names), text, joins=True, counted=True)


_SCRIPTS = {code: script_for(frozenset({code})) for code in range(1, len(STRATEGIES) + 1)}


class LimitOperation:
    """Ask some limits, all or nothing."""

    __slots__ = ("patience_us", "questions")

    followed = False

    def __init__(self, questions: Sequence[Question], patience_us: int = 0) -> None:
        self.questions = questions
        self.patience_us = patience_us

    @property
    def script(self) -> Script:
        """The one with the strategies that are asked."""
        if len(self.questions) == 1:
            return _SCRIPTS[self.questions[0].rule.code]
        return script_for(frozenset(question.rule.code for question in self.questions))

    @property
    def parts(self) -> list[Part]:
        """The state of each limit."""
        return [Part(f"{SPACE}:{q.name}", q.key, q.rule) for q in self.questions]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], list[Answer]]:
        """Decide all, then charge all or none."""
        steps = [
            self._one(question, state, now_us) for question, state in zip(self.questions, states, strict=True)
        ]
        charge = self.patience_us < 0
        granted = charge or all(wait_us <= self.patience_us for _, wait_us in steps)
        kept: list[State | None] = []
        answers = []
        for question, state, (new, wait_us) in zip(self.questions, states, steps, strict=True):
            mine = charge or wait_us <= self.patience_us
            keep = new if granted or not mine else None  # a refusal's new state only anchors the clock
            kept.append(keep)
            retry_us = 0 if mine else wait_us
            answers.append(
                answered(question.rule, keep or state, now_us, wait_us, retry_us, looks=not question.amount)
            )
        return kept, answers

    def _one(self, question: Question, state: State | None, now_us: int) -> tuple[State | None, int]:
        rule, amount = question.rule, question.amount
        if amount > 0:
            return rule.step(state, now_us, amount, self.patience_us)
        if amount < 0 and state is not None:
            return rule.give(state, now_us, -amount), 0
        return None, 0 if amount else rule.at(now_us)[1]

    def key_names(self) -> list[str]:
        """Two for each limit: its state, and the record of what is in force."""
        found = []
        for _, name, key, *_ in self.questions:
            found.append(f"{SPACE}:{name}:{key}" if key else f"{SPACE}:{name}")
            found.append(f"{CHANGES}:{name}")
        return found

    def arguments(self) -> list[int | str | bytes]:
        """One group: how many, then seven numbers for each."""
        found: list[int | str | bytes] = [len(self.questions)]
        for rule, _, _, amount, *_ in self.questions:
            found += (rule.code, amount, self.patience_us, *rule.numbers)
        return found

    def undo(self, reply: Sequence[Answer]) -> LimitOperation | None:
        """Give back what was granted to a caller that is gone; a turn in a queue is spent."""
        granted = all(answer.wait_us <= self.patience_us for answer in reply)
        if self.patience_us or not granted or any(q.amount <= 0 for q in self.questions):
            return None
        return LimitOperation([q._replace(amount=-q.amount) for q in self.questions])

    def alone(self, outage: Outage) -> LimitOperation:
        """Ask this worker's own part of each limit."""
        from comporta.limits.share import rule_alone  # noqa: PLC0415 - shares report by operations

        rules = [q.known() if q.known else q.rule for q in self.questions]
        own = [
            q._replace(rule=rule_alone(rule, q.name, q.fallback, outage))
            for q, rule in zip(self.questions, rules, strict=True)
        ]
        return LimitOperation(own, self.patience_us)

    @property
    def fields(self) -> int:
        """Eight for each limit."""
        return _FIELDS * len(self.questions)

    def parse(self, raw: Sequence[Any]) -> list[Answer]:
        """Read the reply; an error in the place of an answer names the key it came from."""
        if len(raw) == _FIELDS and isinstance(raw[0], int):
            return [Answer._make(raw)]
        answers = []
        for question, start in zip(self.questions, range(0, len(raw), _FIELDS), strict=True):
            fields = raw[start : start + _FIELDS]
            if not isinstance(fields[0], int):
                raise unusable(question, fields[0])
            answers.append(Answer(*fields))
        return answers


def unusable(question: Question, error: bytes | str) -> StateError:
    """Return the error for a key that holds something else, or that this user may not touch."""
    text = error.decode("utf-8", "replace") if isinstance(error, bytes) else error
    key = key_text(f"{SPACE}:{question.name}", question.key)
    if "WRONGTYPE" not in text:
        return named(RuntimeError(text), repr(key))
    return StateTypeError(f"{key!r} does not hold the state of a limit, left as it is: {text}")
