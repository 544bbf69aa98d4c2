"""Constants of the demo: limits, timings, and the settings file for its workers.

The values are those of a real installation with shorter times: breakers stay open for seconds instead of
minutes, and answers are fresh for seconds instead of hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

HOST: Final = "127.0.0.1"
PORT: Final = 8000
WORKERS: Final = 3
CONCURRENT_CALLS_MAX: Final = 8
"""The limit on concurrent calls to each portal, for the whole fleet."""

PEOPLE: Final = 12
"""How many people search at once in the scenario ``crowd``."""

LATENCY_SECONDS: Final = 0.15
"""The mean response time of a healthy simulated portal."""

CONTROL_VARIABLE: Final = "COMPORTA_DEMO_CONTROL"
"""The environment variable that gives the workers the URL at which the portals can be broken and repaired."""


class PortalLimit(NamedTuple):
    """The rate limit of a portal, which the fleet must not exceed."""

    rate: int
    burst: int

    def __str__(self) -> str:
        return f"{self.rate}/s burst {self.burst}"

    def requests_max(self, seconds: float, workers: int) -> float:
        """Return the largest number of requests that the portal may receive within ``seconds``.

        The limit grants rate and burst. Calls that were granted earlier may arrive together, up to the
        number of concurrent calls; and the end of an outage of the shared state may cost one extra call for
        each worker.
        """
        return self.rate * seconds + self.burst + CONCURRENT_CALLS_MAX + workers


LIMITS: Final = {"pncp": PortalLimit(10, 5), "pcp": PortalLimit(5, 3)}


@dataclass(frozen=True)
class Pace:
    """The timing of a scenario, in seconds: slow enough to read at a terminal, fast in a pipe.

    ``step_pause``: pause after each step. ``step_timeout``: how long a step may wait for its condition.
    ``cooldown``: how long breakers stay open. ``ramp``: duration of each step of the breaker's ramp.
    ``fresh``: how long answers are fresh. ``status_interval``: time between two status lines.
    ``scenario_pause``: time between two scenarios.
    """

    step_pause: float
    step_timeout: float
    cooldown: float
    ramp: float
    fresh: float
    status_interval: float
    scenario_pause: float


INTERACTIVE_PACE: Final = Pace(
    step_pause=6.0,
    step_timeout=45.0,
    cooldown=12.0,
    ramp=2.0,
    fresh=15.0,
    status_interval=10.0,
    scenario_pause=90.0,
)
"""For a reader at a terminal."""

PIPED_PACE: Final = Pace(
    step_pause=0.5,
    step_timeout=60.0,
    cooldown=3.0,
    ramp=0.5,
    fresh=4.0,
    status_interval=3.0,
    scenario_pause=1.0,
)
"""For output to a pipe or a file."""

_UPSTREAM = """
[upstreams.{name}]
limit = "{limit}"
max_wait = 3
max_concurrent = {in_flight}
timeout = 2
pause_max = 10

[upstreams.{name}.breaker]
threshold = 10
cooldown_seconds = {cooldown}
probes = 3
probe_seconds = 4
ramp_steps = 2
ramp_seconds = {ramp}

[upstreams.{name}.retry]
retries = 2
base = 0.3

[upstreams.{name}.degradation]
every = 2
"""

_SERVICE = """
state = "{state}"

[service]
host = "{host}"
workers = {workers}
database = "sqlite:///{folder}/service.db"
trusted_proxies = ["127.0.0.0/8"]
allow_private_addresses = true
client_limit = "10/s burst 20"
close_seconds = 1

[service.search]
fresh = {fresh}
stale = 3600
timeout = 8

[service.addresses]
pncp = "{portals}/pncp"
pcp = "{portals}/pcp"

[service.batch]
concurrency = 5
lease_seconds = 3
poll_seconds = 0.5
"""


def settings_file(state: str, portals: str, folder: str, workers: int, pace: Pace) -> str:
    """Return the content of the settings file for the workers."""
    service = _SERVICE.format(
        state=state, portals=portals, folder=folder, workers=workers, host=HOST, fresh=pace.fresh
    )
    upstreams = [
        _UPSTREAM.format(
            name=name, limit=limit, in_flight=CONCURRENT_CALLS_MAX, cooldown=pace.cooldown, ramp=pace.ramp
        )
        for name, limit in LIMITS.items()
    ]
    return service.lstrip() + "".join(upstreams)
