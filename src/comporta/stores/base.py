"""What a store and an operation know of each other.

An operation is a value: the parts of state it touches, a pure ``step`` over them, and the Lua script
that does the same on a server. A store owns atomicity, time and storage, and nothing else. Whoever
writes a store of their own runs :class:`comporta.testing.StoreConformance` against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from comporta.clock import Clock

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

State = tuple[Any, ...]
"""The state of one key; its parts mean something to the operation, its bytes to the codec."""

GONE: Final[State] = ("gone",)
"""In place of a new state: there shall be none."""

KEY_BYTES_MAX = 512
"""The longest key any store keeps as it is written."""


class Codec(Protocol):
    """Writes a state as bytes in place, and reads it; ``struct.Struct`` is one."""

    @property
    def size(self) -> int:
        """The most bytes a state takes."""

    def pack_into(self, buffer: Any, offset: int, /, *state: Any) -> None:
        """Write a state."""

    def unpack_from(self, buffer: Any, /, offset: int = 0) -> State:
        """Read a state."""


class Kind(Protocol):
    """What a store must know of a state to keep it."""

    @property
    def codec(self) -> Codec:
        """How the state is laid out in bytes."""

    def expires_us(self, state: State) -> int:
        """Tell from when on this state means no more than having none."""


class Stepper(Kind, Protocol):
    """A kind of state with one hot operation: take an amount, or be told how long to wait."""

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """See :meth:`comporta.limits.rule.Rule.step`."""

    def revised(self, change: bytes | None) -> Stepper:
        """Return the stepper in force under a change recorded by an operator (``None``: none)."""


Step = Callable[[State | None, int, int], tuple[State | None, R]]
"""Given a state, the time and an amount: what becomes of the state (``None``: it stays), and a reply."""

StepOf = Callable[[Any], Step[R]]


class Part(NamedTuple):
    """One piece of state that an operation touches: ``space`` or ``space:key``."""

    space: str
    key: str
    kind: Kind


class Script(NamedTuple):
    """A Lua script. ``joins``: several calls of it may be sent as one, arguments end to end.

    ``keys`` and ``arguments`` come first, once, whatever is joined. ``counted``: the text leaves its answer
    in ``reply`` and does not return it; a server with a count of live workers adds that (``counted.lua``).
    ``asking``: it goes to a node of a cluster that is just being given what it asks for. ``stripped``: only
    the states are declared as KEYS, other keys are named as arguments (``stripped.lua``).
    """

    name: str
    text: Callable[[], str]
    joins: bool = False
    keys: tuple[str, ...] = ()
    arguments: tuple[int | str | bytes, ...] = ()
    counted: bool = False
    asking: bool = False
    stripped: bool = False


class Outage(NamedTuple):
    """What a worker on its own knows: since when, why, and among how many the limit is shared.

    ``since`` is in Unix seconds, for people; ``since_us`` by the clock of the local state. ``denied``: the
    server is there and does not let us in. ``full``: this worker has no room for another key.
    """

    since: float
    since_us: int
    why: str
    workers: int
    denied: bool = False
    full: bool = False


class Operation(Protocol[R_co]):
    """Something to be done to some states in one atomic step."""

    @property
    def parts(self) -> Sequence[Part]:
        """The states it touches, each once."""

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], R_co]:
        """Return what shall become of each state (``None``: unchanged, ``GONE``: none) and the reply."""

    @property
    def followed(self) -> bool:
        """Whether it changes something that bound steppers follow (see ``LocalStore.bind``)."""

    @property
    def script(self) -> Script:
        """The twin of ``step`` for a server."""

    def key_names(self) -> Sequence[str]:
        """Return KEYS for the script."""

    def arguments(self) -> Sequence[int | str | bytes]:
        """Return ARGV for the script, after the time."""

    def undo(self, reply: Any) -> Operation[Any] | None:
        """Return what gives back what ``reply`` granted, for a caller that is gone; or nothing."""

    def alone(self, outage: Outage) -> Operation[R_co] | None:
        """Return what to do in its place to this worker's own state while the shared one is out of reach.

        ``None``: it makes sense only where all can see it.
        """

    def parse(self, raw: Sequence[Any]) -> R_co:
        """Read the script's reply (the part of it that belongs to this operation)."""

    @property
    def fields(self) -> int:
        """How many elements of a joined script's reply belong to this operation."""


class Store(Protocol):
    """A state engine."""

    @property
    def clock(self) -> Clock:
        """The clock for waits; local stores decide by it too."""

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation, blocking."""

    async def apply_async(self, operation: Operation[R]) -> R:
        """Carry out an operation without holding up the event loop."""

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space, by key. Not one atomic view."""

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns, without holding up the event loop."""

    def close(self) -> None:
        """Let go of connections and files. The state itself stays where it is shared."""


class Busy(Exception):  # noqa: N818 - a signal between a store and its caller, not an error
    """It cannot be decided at once, without waiting for somebody."""


class Bound(Protocol):
    """A stepper tied to a store: the direct path for the hot operation.

    Keys may be whatever the callable given to ``bind`` turns into the text of a key.
    """

    @property
    def stepper(self) -> Stepper:
        """The stepper in force: the one bound, as an operator may have changed it."""

    async def stepper_async(self) -> Stepper:
        """Return the stepper in force, without holding up the event loop."""

    def attempt(self, key: Any, cost: int) -> int:
        """Apply ``step`` to a key and return the wait in microseconds, or raise ``Busy`` at once."""

    def take(self, key: Any, cost: int) -> int:
        """Do the same, waiting as long as the store allows; blocking."""

    async def take_async(self, key: Any, cost: int) -> int:
        """Do the same, without holding up the event loop."""


class LocalBound(Bound, Protocol):
    """A stepper tied to a store of this process, which can be asked for more than a wait."""

    def short_way(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return what ``attempt`` is, for another step: ``step_of`` makes it from the stepper in force."""


class LocalStore(Store, Protocol):
    """A store whose operations take microseconds, in this process."""

    def bind(self, stepper: Stepper, space: str, change: Part, written: Callable[[Any], str]) -> LocalBound:
        """Tie a stepper to a space; it follows what is recorded at ``change``.

        ``written`` turns what callers use as a key into its text, and rejects what is none. It is asked
        only about keys the store does not know yet.
        """


def key_text(space: str, key: str) -> str:
    """Return the name of a state as operators see it."""
    return f"{space}:{key}" if key else space
