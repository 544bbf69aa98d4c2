"""Real Redis Sentinels for tests, which watch a primary and promote a replica when the primary fails."""

from __future__ import annotations

from typing import Any, Self

from comporta.testing.lifecycle import Lifecycle
from comporta.testing.redis_server import HOST, Server, wait_until

_START_SECONDS = 60.0


class Sentinels(Lifecycle):
    """Several sentinels that watch one primary and the replicas it has when they start.

    ::

        with Server() as primary, primary.replica(), Sentinels(primary) as sentinels:
            primary.kill()
            sentinels.wait_for_primary(other_than=primary.port)

    ``nodes`` are the sentinels, ``primary`` is the server that they watched first, and ``service`` is the
    name under which clients ask for the primary.
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
        """The URL with the addresses of all sentinels and the name of the service."""
        scheme, _, rest = self.primary.url.partition("://")
        user = rest[: rest.find("@") + 1]
        addresses = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return f"{scheme}+sentinel://{user}{addresses}/{self.service}/0"

    def start(self) -> Self:
        """Start the sentinels and wait until each knows the others and the replicas.

        Before that they cannot fail over.
        """
        try:
            for node in self.nodes:
                node.start()
            replicas = int(self.primary.info("replication")["connected_slaves"])
            wait_until(
                lambda: all(self._has_discovered(node, replicas) for node in self.nodes),
                f"the sentinels of {self.service!r} know each other and {replicas} replicas",
                _START_SECONDS,
            )
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill the sentinels and remove their files. The servers they watch keep running."""
        for node in self.nodes:
            node.close()

    def primary_address(self) -> tuple[str, int]:
        """Return the host and port of the primary, according to the first sentinel that replies."""
        addresses = self._reported_primaries()
        if not addresses:
            raise RuntimeError(f"no sentinel of {self.service!r} replies")
        return addresses[0]

    def wait_for_primary(self, other_than: int, seconds: float = 15.0) -> tuple[str, int]:
        """Wait until all sentinels that reply name the same primary on another port; return its address."""

        def agree() -> bool:
            addresses = self._reported_primaries()
            return len(set(addresses)) == 1 and addresses[0][1] != other_than

        wait_until(agree, f"{self.service!r} has a primary on a port other than {other_than}", seconds)
        return self.primary_address()

    def _reported_primaries(self) -> list[tuple[str, int]]:
        addresses = []
        for node in self.nodes:
            try:
                host, port = node.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service, timeout=0.5)
            except OSError:
                continue
            addresses.append((host, int(port)))
        return addresses

    def _has_discovered(self, node: Server, replicas: int) -> bool:
        flat: list[Any] = node.command("SENTINEL", "MASTER", self.service)
        info = dict(zip(flat[::2], flat[1::2], strict=True))
        others = int(info["num-other-sentinels"])
        return others == len(self.nodes) - 1 and int(info["num-slaves"]) >= replicas


class _Sentinel(Server):
    """The server program in sentinel mode. It stores what it learns in its configuration file."""

    def __init__(self, primary: Server, lines: list[str]) -> None:
        super().__init__(primary.program, tls=primary.certificate or False)
        self._lines = lines

    def _arguments(self) -> list[str]:
        path = self._directory_path() / "sentinel.conf"
        listen_lines = [f"{name} {value}" for name, value in self._listen_settings().items()]
        path.write_text("\n".join([*listen_lines, *self._lines, ""]), encoding="utf-8")
        return [str(path), "--sentinel"]
