"""The server that the Redis-backed contenders are measured on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from comporta.testing import Server, find_servers


def start() -> Server:
    """Start Debian's Redis if it is there, since most fleets run that one; else the Valkey of our tests."""
    found = find_servers()
    return Server(found.get("redis") or found.get("valkey"))


@contextmanager
def pinned() -> Iterator[str]:
    """Start one that shares a core with this thread, where the system can do that; gives its URL.

    Then client and server never run at once, and the figure is what a decision costs both of them: it
    does not depend on how well the system places two processes that wake each other.
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
