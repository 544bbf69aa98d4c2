"""The long tests share the states of the short ones."""

from tests.processes.conftest import redis_server, servers, shared, state

__all__ = ["redis_server", "servers", "shared", "state"]
