"""The contract between a state engine and what is stored in it: ``Store``, ``Operation`` and their parts.

An operation is a value: the states it touches, a pure ``step`` over them, and the Lua script that does the
same on a server. A store provides atomicity, time and storage, and does not know what an operation means. An
engine implements two methods (``apply`` and ``apply_async``); every other capability is a method or an
attribute with a working default. :class:`comporta.testing.StoreConformance` tests an engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar
from weakref import ref

from comporta.clock import MONOTONIC, Clock
from comporta.errors import StateFullError, StateMovingError, StatePermissionError, StateTypeError
from comporta.stores.outage_info import Fallback, Outage

if TYPE_CHECKING:
    from comporta.stores.bound_limit import Binding, LocalBoundLimit
    from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber
    from comporta.stores.in_process_states import InProcessStates

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

State = tuple[Any, ...]
"""The state of one key. The operation interprets its elements, the codec its bytes."""

GONE: Final[State] = ("gone",)
"""Returned instead of a new state: the store deletes the key."""

PINNED_US: Final = 2**61
"""Added to the expiry time of a state that a full store must not evict: no expiry time has this bit."""

KEY_BYTES_MAX = 512
"""The longest key that a store keeps as it is written."""

KEY_ERRORS: Final = (StatePermissionError, StateFullError, StateTypeError, StateMovingError)
"""Errors that concern one key only: operations on other keys still work."""


class Codec(Protocol):
    """Turns a state into bytes, and reads it back; ``struct.Struct`` is one."""

    @property
    def size(self) -> int:
        """The largest number of bytes a state takes."""

    def pack(self, /, *state: Any) -> bytes:
        """Return a state as bytes."""

    def unpack_from(self, buffer: Any, /, offset: int = 0) -> State:
        """Read a state."""


class StateType(ABC):
    """What a store must know about a state to keep it: its bytes, and when it expires.

    The strategies of limits are state types, and so is everything else that a store keeps.
    """

    __slots__ = ()

    name: str = ""
    """Part of a key's identity in a store that keeps bytes; differs between types with different layouts."""

    listed: bool = False
    """Whether :meth:`Store.entries` lists the keys of this type."""

    evictable: bool = False
    """Whether a full store may evict states, and let keys without room share one state instead.

    There may be very many keys of such a type, and a store may keep those not used recently as bytes.
    """

    attached: bool = False
    """Whether a state of this type belongs to the state before it in an operation's ``state_keys``.

    A server keeps both under one key; elsewhere it may block fast paths (:meth:`blocks_fast_path`).
    """

    @property
    @abstractmethod
    def codec(self) -> Codec:
        """How the state is laid out in bytes."""

    @abstractmethod
    def expires_us(self, state: State) -> int:
        """Return the time from which this state is equivalent to no state."""

    def retention_us(self, state: State) -> int:
        """Return ``expires_us``, plus ``PINNED_US`` if a full store must keep the state until then.

        Without it the store may evict the state earlier, as if the key had never been used.
        """
        return self.expires_us(state) + PINNED_US

    def blocks_fast_path(self, state: State) -> bool:
        """Whether fast paths must not decide on the state that this one is attached to.

        They then apply an operation that reads both states.
        """
        return False

    def take_report(
        self, space: str, key: str, state: State, now_us: int
    ) -> tuple[Operation[object] | None, State | None]:
        """Return the operation that reports an outage's state to the shared store, and the state after it.

        Returns ``None`` and ``None`` if there is nothing to report. Called when the shared store is reachable
        again.
        """
        return None, None

    def with_outage(self, outage: Outage) -> StateType:
        """Return the type that reports the same states once the outage is known to concern more workers."""
        return self


class StateKey(NamedTuple):
    """The name and the type of one state that an operation touches.

    Operators see ``space:key``, or ``space`` if ``key`` is empty.
    """

    space: str
    key: str
    type: StateType


class Script(NamedTuple):
    """A Lua script: its ``name`` and a function that returns its ``text``.

    ``batchable``: several calls of it may be sent as one, with their arguments concatenated. ``keys`` and
    ``arguments`` come first, and only once, however many calls are joined. ``notes_changes``: the text may
    call ``note_change`` (``changes.lua``). ``asking``: the call goes to a cluster node that is importing the
    slot, and declares only its first key. ``states_only``: the call goes to a node that is giving the slot
    away, and declares only the states (``redis/keys_of_leaving_slot.lua``). ``across_slots``: the keys are in
    several slots of one node, and none is declared (``redis/keys_across_slots.lua``). ``override``: the
    override record to use instead of the stored one (``redis/override_from_args.lua``).
    """

    name: str
    text: Callable[[], str]
    batchable: bool = False
    keys: tuple[str, ...] = ()
    arguments: tuple[int | str | bytes, ...] = ()
    notes_changes: bool = False
    asking: bool = False
    states_only: bool = False
    across_slots: bool = False
    override: bytes | None = None


class Operation(ABC, Generic[R_co]):
    """A change to some states in one atomic step, with a reply.

    A local engine needs ``step`` and ``state_keys``. Engines that run Lua on a server need ``script``,
    ``script_keys``, ``script_args`` and ``parse``.
    """

    __slots__ = ()

    changes_override: bool = False
    """Whether the operation writes an override that bound limits follow (see :meth:`Store.bind`)."""

    @property
    @abstractmethod
    def state_keys(self) -> Sequence[StateKey]:
        """The states that the operation touches, each once."""

    def changed_name(self, reply: Any) -> str | None:
        """Return the name under which the change log records the change; ``None`` if nothing changed.

        Lua version: the script's calls of ``note_change``.
        """
        return None

    @property
    def is_read(self) -> bool:
        """Whether the operation only reads: at most it removes what has expired, and it may be repeated."""
        return False

    @property
    @abstractmethod
    def script(self) -> Script:
        """The Lua version of ``step``."""

    @property
    def reply_size(self) -> int:
        """How many elements of a batched script's reply belong to this operation."""
        return 1

    @abstractmethod
    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], R_co]:
        """Return the new state of each key (``None``: unchanged, ``GONE``: delete) and the reply."""

    def script_keys(self) -> Sequence[str]:
        """Return KEYS for the script."""
        return [key_text(key.space, key.key) for key in self.state_keys]

    @abstractmethod
    def script_args(self) -> Sequence[int | str | bytes]:
        """Return ARGV for the script, after the time."""

    @abstractmethod
    def parse(self, raw: Sequence[Any]) -> R_co:
        """Read the script's reply (the part of it that belongs to this operation)."""

    def undo(self, reply: Any) -> Operation[Any] | None:
        """Return the operation that releases what ``reply`` granted to a cancelled caller."""
        return None

    def as_report(self, reporter: str, number: int) -> Operation[Any]:
        """Return this operation as a report that takes effect once, however often it is applied.

        The numbers of one reporter increase, and its reports are applied in order. An operation that may
        safely be applied more than once returns itself.
        """
        return self

    def fallback(self, outage: Outage) -> Operation[R_co] | None:
        """Return the operation to apply to this worker's local state while the shared store is unreachable.

        ``None`` if the operation makes sense only where all workers see it.
        """
        return None


OverrideListener = ref[Callable[[bytes | None], None]]
"""A weak reference to a function that is called with a record's value (``None``: no record)."""


class Store(ABC):
    """A state engine.

    Required: ``apply`` and ``apply_async``. Every other member has a working default; an engine overrides
    those that it can improve. An engine raises a ``StateError`` subclass when it cannot carry out an
    operation:

    - ``StateUnavailableError``: the engine cannot be reached or used; the operation had no effect, or that is
      unknown. The worker decides from its local share until a probe succeeds.
    - ``StateTimeoutError``: no answer in time; the operation may have taken effect. The worker then also
      decides from its local share.
    - ``StateAuthError``: the engine refuses the credentials. Before the first reply the error reaches the
      caller; later the worker decides from its local share.
    - ``StatePermissionError``, ``StateTypeError``, ``StateFullError``, ``StateMovingError``: the operation's
      key cannot be used. Only that key is decided from the local share.

    A raw ``OSError`` counts as ``StateUnavailableError``, a raw ``TimeoutError`` as ``StateTimeoutError``.
    Any other exception is a bug of the engine and reaches the caller.
    """

    clock: Clock = MONOTONIC
    """The clock for waits; engines on one machine also decide by it."""

    address: str = "state"
    """The name of the state in events, log lines and metrics, without credentials."""

    shared: bool = True
    """Whether other processes see the state. A shared engine gets failover when it is opened by its URL."""

    decides_in_process: bool = False
    """Whether an operation takes microseconds in this process, without a server; ``bind`` then works."""

    is_healthy: bool
    """Whether operations reach the engine, for a store that fails over; also false before the first use."""

    has_heartbeat: bool = False
    """Whether the store has a heartbeat, which polls for subscribers and reads overrides."""

    keeps_changes: bool = False
    """Whether it records the changes that operations name (``Operation.changed_name``) in a change log.

    Then the heartbeat reads the log instead of every record that is followed (``changes.py``).
    """

    batch_size: int = 1
    """The most operations that ``apply_many`` sends in one call."""

    connect_seconds_max: float = 0.0
    """How long ``probe`` may take to connect: rejoining workers wait at least this long for each other."""

    state_bytes_max: int | None = None
    """The largest state that the store keeps; ``None`` means no limit."""

    @abstractmethod
    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation, blocking. Raises ``StateError`` if that is not possible."""

    @abstractmethod
    def apply_async(self, operation: Operation[R]) -> Coroutine[Any, Any, R]:
        """Carry out an operation without blocking the event loop."""

    def apply_many(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Carry out several operations; return the reply to each, or the error of its key.

        Operations are carried out in order, except that reads (``Operation.is_read``) may come last.
        """
        replies: list[Any] = []
        for operation in operations:
            try:
                replies.append(self.apply(operation))
            except KEY_ERRORS as error:
                replies.append(error)
        return replies

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space, by key, not as one atomic view.

        An engine that cannot list records returns an empty dictionary: the dashboard and ``comporta top``
        then show no upstreams.
        """
        return {}

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns, without blocking the event loop."""
        return self.entries(space)

    def bind(self, binding: Binding) -> LocalBoundLimit | None:
        """Tie a limit's algorithm to this store; ``None`` if every decision is an operation."""
        return None

    def probe(self) -> None:  # noqa: B027 - a default
        """Check that the store can be used; raise the ``StateError`` that says why not. May block."""

    def verify(self) -> None:  # noqa: B027 - a default
        """Check, about once a second, that this store still uses the state that other workers find."""

    @property
    def primary(self) -> Store:
        """The engine that this store wraps, or the store itself."""
        return self

    @property
    def worker_count(self) -> int | None:
        """How many workers share this state, as far as this worker knows."""
        return None

    @property
    def fallback(self) -> Fallback | None:
        """Why this worker decides from its local share; ``None`` while the store is reachable."""
        return None

    @property
    def memory(self) -> InProcessStates | None:
        """This store, if its state is a dictionary of this process that callers may use directly."""
        return None

    @property
    def large_states_max(self) -> int | None:
        """How many histories, the largest states, this store keeps; ``None`` means no limit."""
        return None

    def subscribe(self, subscriber: HeartbeatSubscriber) -> None:  # noqa: B027 - a default
        """Poll for a subscriber for as long as it is referenced elsewhere, if there is a heartbeat."""

    def follow(self, space: str, key: str, listener: OverrideListener) -> None:  # noqa: B027 - a default
        """Pass a record to ``listener`` within about 1 s of each change, if there is a heartbeat."""

    def start_heartbeat(self) -> bool:
        """Start the heartbeat if there is one and it is not running; false if none runs."""
        return False

    def poll_soon(self) -> None:  # noqa: B027 - a default
        """Poll for the subscribers now rather than at the next poll of the heartbeat."""

    def close(self) -> None:  # noqa: B027 - a default
        """Close connections and files. Shared state is kept. A second call does nothing."""

    def close_connections(self) -> None:  # noqa: B027 - a default
        """Close the connections of blocking callers; they reopen when needed. The state is kept."""

    async def aclose(self) -> None:  # noqa: B027 - a default
        """Close connections, including those of the running event loop; they reopen when needed."""


def key_text(space: str, key: str) -> str:
    """Return the name of a state as operators see it."""
    return f"{space}:{key}" if key else space
