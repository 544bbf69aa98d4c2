"""The modules whose mutants the tests must find: those that decide, without I/O and without a clock."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

TARGETS: dict[str, tuple[str, ...]] = {
    "strategies": (
        *(f"limits/strategies/{name}.py" for name in ("bucket", "calendar_window", "counted_window")),
        *(f"limits/strategies/{name}.py" for name in ("fixed_window", "leaky_bucket", "recent_traffic")),
        *(
            f"limits/strategies/{name}.py"
            for name in ("schedule", "sliding_window", "token_bucket", "window")
        ),
    ),
    "breaker": tuple(
        f"breaker/{name}.py"
        for name in ("state_machine", "state", "transitions", "result_counts", "normalization", "codec")
    ),
    "retry": ("retry/attempts.py", "retry/backoff.py", "retry/budget.py"),
    "shares": (
        "limits/strategies/outage_share.py",
        *(f"stores/failover/{name}.py" for name in ("barrier", "local_share", "worker_count")),
        "ramp.py",
    ),
    "outcome": ("outcome.py", "headers.py", "client_answers.py"),
    "validators": ("validators.py", "limits/config.py", "breaker/config.py"),
    "settings": ("settings/field_types.py", "settings/toml_positions.py", "settings/toml_table.py"),
    "leases": ("limits/leases/operation.py", "limits/leases/client.py"),
    "permits": ("limits/concurrency/permits.py", "limits/concurrency/fairness_queue.py"),
    "cache": tuple(f"cache/{name}.py" for name in ("health", "coverage", "expiry", "entry")),
    "channel": ("pipeline/channel.py", "pipeline/sync_channel.py"),
    "checkpoint": ("pipeline/run/checkpoint.py", "pipeline/run/offsets.py"),
}
"""The modules by group, as paths below ``src/comporta``."""

TESTS = (
    *("breaker", "cache", "differential", "limits", "pipeline", "retry", "settings", "stores", "upstream"),
    *("test_headers.py", "test_outcome.py", "test_ramp.py", "test_timeouts.py", "test_validators.py"),
)
"""Where to look for tests, below ``tests``. Those that start a process are not used."""


def chosen_modules(names: list[str]) -> list[str]:
    """Return the modules that groups or parts of paths name, in order; without names all of them."""
    modules = {module: group for group, members in TARGETS.items() for module in members}
    for name in names:
        if name not in TARGETS and not any(name in module for module in modules):
            groups = ", ".join(TARGETS)
            raise ValueError(f"unknown module: {name} (expected one of {groups}, or part of a path)")
    return [
        module
        for module, group in modules.items()
        if not names or group in names or any(name in module for name in names)
    ]
