"""The methods of a channel for threads: ``channel.sync``.

They do the same as the methods in ``channel.py``, on the calling thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from comporta.errors import ChannelClosedError
from comporta.flow import run

if TYPE_CHECKING:
    from comporta.pipeline.channel import Channel

T = TypeVar("T")


class SyncChannel(Generic[T]):
    """The methods of a channel for threads: ``channel.sync``."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel[T]) -> None:
        self._channel = channel

    def send(self, item: T) -> None:
        """Put an item in, waiting while the channel is full."""
        if not self._channel._try_send(item):
            run(self._channel._send_flow(item))

    def send_many(self, items: Iterable[T]) -> None:
        """Put all items in, in order, as room becomes available."""
        run(self._channel._send_many_flow(items))

    def receive(self) -> T:
        """Return the next item, waiting for one."""
        return run(self._channel._receive_flow(1, None))[0]

    def receive_many(self, n: int, deadline: float | None = None) -> list[T]:
        """Return the items in the channel, at most ``n``; if there are none, wait for one."""
        return self._channel._receive_now(n, deadline) or run(self._channel._receive_flow(n, deadline))

    def close(self) -> None:
        """Accept no more items."""
        self._channel.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self.receive()
        except ChannelClosedError:
            raise StopIteration from None
