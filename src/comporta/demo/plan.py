"""What the demo is made of, as plain values: limits, rhythms, and the file that configures its workers.

The numbers are those of a real installation made quicker: breakers come back in seconds instead of minutes,
answers are fresh for seconds instead of hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

HOST: Final = "127.0.0.1"
PORT: Final = 8000
WORKERS: Final = 3
IN_FLIGHT: Final = 8
"""How many calls to each portal may be under way at once."""

LATENCY_SECONDS: Final = 0.15
"""How long the simulated portals take for an answer on a good day, more or less."""

CONTROL_VARIABLE: Final = "COMPORTA_DEMO_CONTROL"
"""The environment variable by which workers know where the portals can be broken and mended."""


class Limit(NamedTuple):
    """What a portal allows, and the fleet keeps to."""

    rate: int
    burst: int

    def __str__(self) -> str:
        return f"{self.rate}/s burst {self.burst}"

    def most(self, seconds: float, workers: int) -> float:
        """Return how many requests the portal may see in so many seconds.

        What is granted is rate and burst. Calls in flight may have been granted before, and arrive together;
        and one more for each worker is what the end of an outage of the shared state may cost.
        """
        return self.rate * seconds + self.burst + IN_FLIGHT + workers


LIMITS: Final = {"pncp": Limit(10, 5), "pcp": Limit(5, 3)}


@dataclass(frozen=True)
class Pace:
    """How quickly a story is told, in seconds: what is read along needs time, what is only checked does not.

    ``hold`` is how long each step stays at the least, ``patience`` how long what it waits for may take,
    ``cooldown`` how long breakers stay open, ``ramp`` how long each step of their closing takes, ``fresh``
    how long answers are fresh, ``status`` how often figures are told, ``rest`` how long it is quiet between
    two stories.
    """

    hold: float
    patience: float
    cooldown: float
    ramp: float
    fresh: float
    status: float
    rest: float


WATCHED: Final = Pace(hold=6.0, patience=45.0, cooldown=12.0, ramp=2.0, fresh=15.0, status=10.0, rest=90.0)
"""For people at a terminal."""

UNWATCHED: Final = Pace(hold=0.5, patience=60.0, cooldown=3.0, ramp=0.5, fresh=4.0, status=3.0, rest=1.0)
"""For a pipe: nobody reads along."""

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
sheets = "{folder}/sheets"
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


def file_for(state: str, portals: str, folder: str, workers: int, pace: Pace) -> str:
    """Return the file by which the workers are configured."""
    service = _SERVICE.format(
        state=state, portals=portals, folder=folder, workers=workers, host=HOST, fresh=pace.fresh
    )
    upstreams = [
        _UPSTREAM.format(name=name, limit=limit, in_flight=IN_FLIGHT, cooldown=pace.cooldown, ramp=pace.ramp)
        for name, limit in LIMITS.items()
    ]
    return service.lstrip() + "".join(upstreams)
