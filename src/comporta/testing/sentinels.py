"""Sentinels for tests: real ones, that watch a primary and appoint a new one when it is gone."""

from __future__ import annotations

from typing import Any, Self

from comporta.testing.servers import HOST, Server, wait_until
from comporta.testing.started import Started

_START_SECONDS = 60.0


class Sentinels(Started):
    """Several sentinels that watch one primary and those of its replicas that are there already.

    ::

        with Server() as primary, primary.replica(), Sentinels(primary) as sentinels:
            primary.kill()
            sentinels.wait_for_primary(other_than=primary.port)
    """

    def __init__(
        self,
        primary: Server,
        count: int = 3,
        quorum: int = 2,
        *,
        down_after_ms: int = 500,
        failover_timeout_ms: int = 2000,
        service: str = "main",
    ) -> None:
        self.primary = primary
        self.service = service
        settings = {
            "monitor": f"{HOST} {primary.port} {quorum}",
            "down-after-milliseconds": str(down_after_ms),
            "failover-timeout": str(failover_timeout_ms),
        }
        if primary.password:
            settings["auth-pass"] = primary.password
        lines = [f"sentinel {name} {service} {value}" for name, value in settings.items()]
        self.nodes = [_Sentinel(primary, lines) for _ in range(count)]

    @property
    def url(self) -> str:
        """Where to find them, and the service they know."""
        scheme, _, rest = self.primary.url.partition("://")
        user = rest[: rest.find("@") + 1]
        addresses = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return f"{scheme}+sentinel://{user}{addresses}/{self.service}/0"

    def start(self) -> Self:
        """Start them, and wait until all know each other and the replicas: before, they could do nothing."""
        try:
            for node in self.nodes:
                node.start()
            replicas = int(self.primary.info("replication")["connected_slaves"])
            wait_until(
                lambda: all(self._knows(node, replicas) for node in self.nodes),
                f"the sentinels of {self.service!r} know each other and {replicas} replicas",
                _START_SECONDS,
            )
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill them and remove what they wrote. The servers they watched are others' to end."""
        for node in self.nodes:
            node.close()

    def primary_address(self) -> tuple[str, int]:
        """Return the host and port of the primary, as the first sentinel that answers has it."""
        told = self._told()
        if not told:
            raise RuntimeError(f"none of the sentinels of {self.service!r} answers")
        return told[0]

    def wait_for_primary(self, other_than: int, seconds: float = 15.0) -> tuple[str, int]:
        """Wait until all sentinels that answer name a primary on another port, and return its address."""

        def agreed() -> bool:
            told = self._told()
            return len(set(told)) == 1 and told[0][1] != other_than

        wait_until(agreed, f"there is a primary of {self.service!r} other than port {other_than}", seconds)
        return self.primary_address()

    def _told(self) -> list[tuple[str, int]]:
        told = []
        for node in self.nodes:
            try:
                host, port = node.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service, timeout=0.5)
            except OSError:
                continue
            told.append((host, int(port)))
        return told

    def _knows(self, node: Server, replicas: int) -> bool:
        flat: list[Any] = node.command("SENTINEL", "MASTER", self.service)
        known = dict(zip(flat[::2], flat[1::2], strict=True))
        others = int(known["num-other-sentinels"])
        return others == len(self.nodes) - 1 and int(known["num-slaves"]) >= replicas


class _Sentinel(Server):
    """The same program in another role. It keeps what it learns in its settings, so they are a file."""

    def __init__(self, primary: Server, lines: list[str]) -> None:
        super().__init__(primary.program, tls=primary.certificate or False)
        self._lines = lines

    def _arguments(self) -> list[str]:
        path = self._files() / "sentinel.conf"
        listening = [f"{name} {value}" for name, value in self._listening().items()]
        path.write_text("\n".join([*listening, *self._lines, ""]), encoding="utf-8")
        return [str(path), "--sentinel"]
