"""docs/reference/failover.md lists exactly the tested faults, and the numbers of the code."""

from __future__ import annotations

import re
from collections import Counter
from inspect import signature
from pathlib import Path

import pytest
from tests.faults.all_faults import FAULTS

from comporta.limits.charge import MARKER_TTL_US
from comporta.limits.config import FALLBACKS
from comporta.limits.key import PLAIN_BYTES_MAX
from comporta.limits.strategies.outage_share import CLOSED_RETRY_US
from comporta.stores.failover import recovery, registration
from comporta.stores.failover.barrier import LEAD_US
from comporta.stores.failover.local_share import FALLBACK_KEYS_MAX
from comporta.stores.failover.store import REPORTED_KEYS_MAX
from comporta.stores.failover.worker_registry import DEAD_SECONDS, HEARTBEAT_SECONDS, REJOIN_SECONDS
from comporta.stores.redis import deadline, pool
from comporta.stores.redis.store import CONNECT_TIMEOUT_SECONDS, TIMEOUT_SECONDS
from comporta.stores.shared.store import SharedStore

NAMES = [fault.name for fault in FAULTS]
LOCK_SECONDS: float = signature(SharedStore).parameters["lock_timeout"].default
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "failover.md").read_text(
    encoding="utf-8"
)
STATEMENTS = [
    (f"`?timeout={TIMEOUT_SECONDS:g}`", TIMEOUT_SECONDS),
    (f"within its deadline, {TIMEOUT_SECONDS * 1000:g} ms", TIMEOUT_SECONDS),
    (f"`?lock_timeout={LOCK_SECONDS:g}`", LOCK_SECONDS),
    (f"{pool.CONNECTS_MAX} are made at once, {pool.IDLE_MAX} kept idle", pool.IDLE_MAX),
    (f"keys over {PLAIN_BYTES_MAX} bytes", PLAIN_BYTES_MAX),
    (f"every {HEARTBEAT_SECONDS:g} s", HEARTBEAT_SECONDS),
    (f"after {DEAD_SECONDS:g} s", DEAD_SECONDS),
    (f"{REJOIN_SECONDS:g} s plus `connect_timeout` ({REJOIN_SECONDS + CONNECT_TIMEOUT_SECONDS:g} s)", 0.6),
    (f"ends {LEAD_US / 1e6:g} s after all workers", LEAD_US),
    (f"{recovery._FREEZE_NS / 1e6:g} ms before that moment", recovery._FREEZE_NS),
    (f"within the last {pool._RECENT_NS / 1e9:g} s", pool._RECENT_NS),
    (f"up to {pool.CONNECT_ALLOWANCE_SECONDS * 1000:g} ms for it", pool.CONNECT_ALLOWANCE_SECONDS),
    ("three times the usual round trip", deadline.FACTOR == 3),
    ("four times `timeout` unless given", deadline.TIMEOUT_MAX_FACTOR == 4),
    ("The store remembers for an hour", MARKER_TTL_US == 3600e6),
    (f"after {recovery.PROBE_SECONDS_MIN * 1000:g} ms", recovery.PROBE_SECONDS_MIN),
    (f"up to every {recovery.PROBE_SECONDS_MAX:g} s", recovery.PROBE_SECONDS_MAX),
    ("answers two calls in a row", recovery._PROBE_CALLS == 2),
    ("every minute", registration._DENIAL_EVENT_EVERY_NS == 60e9),
    (f"keeps at most {FALLBACK_KEYS_MAX:,} keys", FALLBACK_KEYS_MAX),
    (f"at most {REPORTED_KEYS_MAX:,} of them", REPORTED_KEYS_MAX),
    ("ask again in a second", CLOSED_RETRY_US == 1_000_000),
    *((f'| `"{policy}"` |', policy) for policy in FALLBACKS),
]


def test_faults__names__are_unique() -> None:
    assert [name for name, times in Counter(NAMES).items() if times > 1] == []


def test_page__table_of_faults__is_the_table_of_tested_faults() -> None:
    [table] = re.findall(r"^\| fault \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    listed = [line.split("|")[1].strip() for line in table.splitlines()]
    assert sorted(listed) == sorted(NAMES)


@pytest.mark.parametrize(("statement", "number"), STATEMENTS)
def test_page__numbers__are_those_of_the_code(statement: str, number: object) -> None:
    assert number
    assert statement in PAGE
