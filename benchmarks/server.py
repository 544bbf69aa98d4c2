"""The server for the Redis-backed contenders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from comporta.testing import Server, find_servers


def start() -> Server:
    """Start the system's Redis if there is one, because most fleets run it, or else Valkey."""
    programs = find_servers()
    return Server(programs.get("redis") or programs.get("valkey"))


@contextmanager
def pinned() -> Iterator[str]:
    """Start a server on the same core as this thread, if the system supports it, and yield its URL.

    Client and server then never run at the same time, and the result is the cost of a decision for both. It
    does not depend on how the scheduler places two processes that wake each other.
    """
    with start() as server:
        if server.process is None or not hasattr(os, "sched_setaffinity"):
            yield server.url
            return
        before = os.sched_getaffinity(0)
        try:
            for pid in (0, server.process.pid):
                os.sched_setaffinity(pid, {max(before)})
            yield server.url
        finally:
            os.sched_setaffinity(0, before)


def describe() -> str:
    """Return the server's name and version."""
    with start() as server, redis.Redis.from_url(server.url) as client:
        about = client.info("server")
    name = about.get("server_name", "redis").capitalize()
    return f"{name} {about.get('valkey_version') or about['redis_version']}"
