"""Configuration from one place: a TOML file, and environment variables that override it.

::

    state = "redis://localhost:6379/0"

    [limits.search]
    limit = "100/minute"

    [namespaces]
    search = "search"

    [breakers.pcp]
    threshold = 30
    cooldown_seconds = 120

    [upstreams.pncp]
    limit = "10/s"
    max_wait = 5
    retry = {retries = 3, deadline = 60}

Everything is checked here, once, as far as it can be without knowing what a limit or a breaker is; who
builds them checks the rest and names the same place. What nobody understands is an error, never ignored.

``values`` says what there is, ``kinds`` what a field may hold; ``document`` reads the file and ``lines``
finds its lines, ``environment`` lays the variables over it, ``loading`` puts it all together.
"""

from comporta.settings.environment import (
    BREAKER_PREFIX,
    CONFIG_VARIABLE,
    LIMIT_PREFIX,
    STATE_VARIABLES,
    UPSTREAM_PREFIX,
    breaker_variable,
    limit_variable,
    upstream_variable,
)
from comporta.settings.explain import Explained, explain
from comporta.settings.loading import load_settings
from comporta.settings.service import (
    SERVICE_PREFIX,
    AddressesSettings,
    BatchSettings,
    SearchSettings,
    ServiceSettings,
    service_variable,
)
from comporta.settings.values import (
    COUNTS,
    FALLBACKS,
    JITTERS,
    RULES,
    SCHEMES,
    STRATEGIES,
    BreakerSettings,
    DegradationSettings,
    LimitSettings,
    RetrySettings,
    Settings,
    UpstreamSettings,
)
from comporta.settings.written import Source

__all__ = [
    "BREAKER_PREFIX",
    "CONFIG_VARIABLE",
    "COUNTS",
    "FALLBACKS",
    "JITTERS",
    "LIMIT_PREFIX",
    "RULES",
    "SCHEMES",
    "SERVICE_PREFIX",
    "STATE_VARIABLES",
    "STRATEGIES",
    "UPSTREAM_PREFIX",
    "AddressesSettings",
    "BatchSettings",
    "BreakerSettings",
    "DegradationSettings",
    "Explained",
    "LimitSettings",
    "RetrySettings",
    "SearchSettings",
    "ServiceSettings",
    "Settings",
    "Source",
    "UpstreamSettings",
    "breaker_variable",
    "explain",
    "limit_variable",
    "load_settings",
    "service_variable",
    "upstream_variable",
]
