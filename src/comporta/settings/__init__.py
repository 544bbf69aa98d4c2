"""Settings from a TOML file and from environment variables that override it.

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

Values are checked when they are loaded, as far as that needs no knowledge of limits and breakers; the code
that builds those checks the rest and reports the same file and line. An unknown field is always an error.

- ``schema``, ``service_schema``: the fields of each table
- ``field_types``: what a field may hold
- ``toml_table``: the base class of tables, whose values know their origin
- ``toml_document``, ``toml_positions``: the file and the lines of its keys
- ``environment``: overrides by environment variables
- ``loader``: puts it all together; ``reloader``: applies changes of the file while the program runs
- ``explain``: where each value comes from
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
from comporta.settings.explain import ExplainedSetting, explain
from comporta.settings.loader import load_settings
from comporta.settings.reloader import SettingsReloader
from comporta.settings.schema import (
    COUNTS,
    DEGRADATION_RULES,
    FALLBACKS,
    JITTERS,
    BreakerSettings,
    DegradationSettings,
    LimitSettings,
    RetrySettings,
    Settings,
    UpstreamSettings,
)
from comporta.settings.service_schema import (
    SERVICE_PREFIX,
    AddressesSettings,
    BatchSettings,
    SearchSettings,
    ServiceSettings,
    service_variable,
)
from comporta.settings.toml_table import Origin

__all__ = [
    "BREAKER_PREFIX",
    "CONFIG_VARIABLE",
    "COUNTS",
    "DEGRADATION_RULES",
    "FALLBACKS",
    "JITTERS",
    "LIMIT_PREFIX",
    "SERVICE_PREFIX",
    "STATE_VARIABLES",
    "UPSTREAM_PREFIX",
    "AddressesSettings",
    "BatchSettings",
    "BreakerSettings",
    "DegradationSettings",
    "ExplainedSetting",
    "LimitSettings",
    "Origin",
    "RetrySettings",
    "SearchSettings",
    "ServiceSettings",
    "Settings",
    "SettingsReloader",
    "UpstreamSettings",
    "breaker_variable",
    "explain",
    "limit_variable",
    "load_settings",
    "service_variable",
    "upstream_variable",
]
