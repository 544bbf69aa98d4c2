"""The long tests share the stores, the browser and the fleet of the short ones."""

from tests.browser.conftest import browser, fleet
from tests.processes.conftest import redis_server, servers, shared, state

__all__ = ["browser", "fleet", "redis_server", "servers", "shared", "state"]
