"""An upstream for blocking code: ``upstream.sync``, with the methods of ``Upstream`` that wait.

It holds nothing: options and policies are the upstream's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, cast, overload

from comporta.flow import run
from comporta.limits.cost import Cost
from comporta.upstream.health import UpstreamState, upstream_health_flow
from comporta.upstream.options import check_buffer_body

if TYPE_CHECKING:
    import httpx
    import httpx2

    from comporta.upstream.requests_adapter import UpstreamAdapter
    from comporta.upstream.upstream import Upstream

P = ParamSpec("P")
T = TypeVar("T")


class SyncUpstream:
    """An upstream for blocking code: ``upstream.sync``."""

    __slots__ = ("_upstream",)

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function through the policies."""
        return cast(T, self._upstream._prepare(function, args, kwargs).execute())

    @overload
    def transport(
        self,
        inner: httpx2.BaseTransport | None = None,
        *,
        client: Literal["httpx2"] = "httpx2",
        buffer_body: int | None = None,
    ) -> httpx2.BaseTransport: ...

    @overload
    def transport(
        self,
        inner: httpx.BaseTransport | None = None,
        *,
        client: Literal["httpx"],
        buffer_body: int | None = None,
    ) -> httpx.BaseTransport: ...

    def transport(self, inner: Any = None, *, client: str = "httpx2", buffer_body: int | None = None) -> Any:
        """Return a transport for ``httpx2.Client``, or with ``client="httpx"`` for httpx's.

        The options are those of :meth:`Upstream.transport`.
        """
        from comporta.upstream.httpx_transport import transport_classes  # noqa: PLC0415 - an extra

        return transport_classes(client).blocking(self._upstream, inner, check_buffer_body(buffer_body))

    def adapter(
        self,
        *,
        repeat: bool = False,
        pool_connections: int = 10,
        pool_maxsize: int = 10,
        pool_block: bool = False,
    ) -> UpstreamAdapter:
        """Return an adapter to mount in a session of the requests library.

        The pool's options are those of ``requests.adapters.HTTPAdapter``.
        """
        from comporta.upstream.requests_adapter import UpstreamAdapter  # noqa: PLC0415 - an extra

        return UpstreamAdapter(
            self._upstream,
            repeat=repeat,
            pool_connections=pool_connections,
            pool_maxsize=pool_maxsize,
            pool_block=pool_block,
        )

    def settle(self, reserved: Cost, used: Cost, granted_at: float | None = None) -> bool:
        """Credit or debit what an attempt cost less or more than its ``cost``."""
        return run(self._upstream._policies.tokens.settle_flow(reserved, used, granted_at))

    def get_state(self) -> UpstreamState:
        """Read the state of the upstream from the store, for a health page."""
        return run(upstream_health_flow(self._upstream._policies))

    def close(self) -> None:
        """Return leased tokens and permits and close the store's blocking connections, until needed again."""
        if self._upstream.permits is not None:
            run(self._upstream.permits._flush_flow())
        self._upstream.limiter.sync.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
