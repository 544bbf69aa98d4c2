"""The invariants of local shares: those of a machine, and those of a strict limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comporta.simulation import (
    Call,
    FleetHistory,
    FleetScenario,
    Moment,
    parse_faults,
    run_scenario,
    simulate,
)
from comporta.simulation.invariants import INVARIANTS
from comporta.simulation.limit_excess import REJOIN_SECONDS_MAX, excess_allowed, starting_excess
from comporta.simulation.network import seconds_ns

THREE = FleetScenario(1, workers=3, rate=10, capacity=5, machines=(3,), faults=parse_faults("crash@0+4"))
STRICT = FleetScenario(
    1, workers=2, seconds=16, load=20, callers=2, rate=20, capacity=20, fallback="closed", closed_after=1.0
)
SOME_AT_ONCE = 30


def moment(at: float, kind: str, worker: str = "w0") -> Moment:
    return Moment(seconds_ns(at), worker, kind, "")


def calls(
    number: int, at: float, result: str = "granted", *, worker: str = "w0", local: bool = True
) -> list[Call]:
    at_ns = seconds_ns(at)
    return [Call(at_ns, at_ns, at_ns, worker, result, local, 1, 0, "", "")] * number


def violations(name: str, scenario: FleetScenario, *records: Call | Moment) -> list[str]:
    return INVARIANTS[name](FleetHistory(scenario, list(records)))


# one machine ------------------------------------------------------------------------------------------------

STARTS = (
    moment(0.1, "state_fallback"),
    moment(0.2, "state_fallback", "w1"),
    moment(0.3, "state_fallback", "w2"),
)


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [("crash@0+4", 1), ("hang@0+4", 2), ("black_hole@0+4; pause@1+0.5:w1", 2.5), ("full@0+4", 1)],
)
def test_starting_excess__of_three_workers__is_as_documented(faults: str, seconds: float) -> None:
    scenario = THREE.with_faults(parse_faults(faults))
    history = FleetHistory(scenario, list(STARTS))
    assert starting_excess(history, 0) == pytest.approx((1 / 2 + 1 / 3) * 10 * seconds)


def test_starting_excess__worker_that_is_killed__counts_no_more() -> None:
    killed = (STARTS[0], moment(0.15, "worker_killed"), *STARTS[1:], moment(5, "state_recovered", "w1"))
    history = FleetHistory(THREE, [*killed, moment(6, "state_fallback", "w1")])
    assert starting_excess(history, 0) == pytest.approx(10 / 2)


def test_starting_excess__later_outage_or_other_machine__is_none() -> None:
    assert starting_excess(FleetHistory(THREE, list(STARTS)), 1) == 0
    later = FleetHistory(THREE.with_faults(parse_faults("crash@2+4; crash@0+4:w1")), list(STARTS))
    assert starting_excess(later, 0) == 0


def test_excess_allowed__two_machines__is_a_limit_more_than_on_one() -> None:
    one = excess_allowed(FleetHistory(THREE, []))
    two = excess_allowed(FleetHistory(replace(THREE, machines=(2, 1)), []))
    assert two - one == 5 + 10 * (4 + REJOIN_SECONDS_MAX)


def test_machine_shares__too_many_local_grants__is_a_violation() -> None:
    name = "machine_shares_one_limit"
    [violation] = violations(name, THREE, *STARTS, *calls(SOME_AT_ONCE, 3))
    assert violation == "machine 0: 25.0 above its limit at 3.000 s, allowed 11.3"
    assert violations(name, THREE, *STARTS, *calls(SOME_AT_ONCE, 3, local=False)) == []
    assert violations(name, THREE, *STARTS, moment(2, "state_recovered"), *calls(SOME_AT_ONCE, 3)) == []
    assert violations(name, replace(THREE, machines=()), *STARTS, *calls(SOME_AT_ONCE, 3)) == []


def test_machine_workers__rejoin_one_after_the_other__is_a_violation() -> None:
    name = "machine_workers_rejoin_together"
    first, last = moment(4.1, "state_recovered"), moment(4.5, "state_recovered", "w1")
    assert violations(name, THREE, *STARTS, first, last) == ["the first rejoined 0.400 s before the last"]
    assert violations(name, THREE, *STARTS, first) == []
    assert violations(name, THREE, *STARTS) == []
    assert violations(name, THREE, *STARTS, moment(3.5, "state_fallback"), first, last) == []
    assert violations(name, replace(THREE, machines=(2, 1)), *STARTS, first, last) == []


# a strict limit ---------------------------------------------------------------------------------------------

OUTAGE = STRICT.with_faults(parse_faults("hang@2+4"))
LOST = (moment(2, "state_fallback"), moment(6.5, "state_recovered"))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("closed_after", "granted"), [(0.0, False), (1.0, True), (2.5, True)])
@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_strict_limit__in_an_outage__grants_its_share_then_nothing_then_again(
    kind: str, closed_after: float, granted: bool, is_async: bool
) -> None:
    scenario = replace(STRICT, closed_after=closed_after, is_async=is_async)
    history, found = run_scenario(scenario.with_faults(parse_faults(f"{kind}@2+4")))
    assert found == []
    began_ns = max(each.at_ns for each in history.moments("state_fallback"))
    ended_ns = min(each.at_ns for each in history.moments("state_recovered"))
    grants = [call.decided_ns for call in history.of(Call) if call.result == "granted"]
    closed_ns = began_ns + seconds_ns(closed_after)
    assert any(began_ns < at_ns < closed_ns for at_ns in grants) is granted
    assert not [at_ns for at_ns in grants if closed_ns < at_ns < ended_ns]
    assert any(at_ns > ended_ns for at_ns in grants)


def test_strict_limit__of_an_upstream__is_strict() -> None:
    upstream = replace(STRICT, workload="upstream", max_wait=0.5)
    history, found = run_scenario(upstream.with_faults(parse_faults("crash@3+3")))
    assert found == []
    assert simulate(history.scenario).trace() == history.trace()
    assert "fallback closed, closed_after 1.0" in str(upstream)


def test_closed_limit__grants_late__is_a_violation() -> None:
    name = "closed_limit_refuses"
    assert violations(name, OUTAGE, *LOST, *calls(1, 2.9), *calls(1, 7), *calls(1, 4, worker="w1")) == []
    assert violations(name, OUTAGE, *LOST, *calls(1, 4, "refused")) == []
    found = violations(name, OUTAGE, *LOST, *calls(9, 4))
    assert found == ["w0 was granted a call at 4.000 s, in an outage since 2.000 s"] * 3
    assert violations(name, replace(OUTAGE, fallback="share"), *LOST, *calls(9, 4)) == []
    leased = replace(OUTAGE, workload="lease", lease=1.5, closed_after=0.0)
    assert violations(name, leased, *LOST, *calls(1, 3.4)) == []
    assert len(violations(name, leased, *LOST, *calls(1, 3.6))) == 1


def test_closed_limit__grants_little_before_it_closes__is_a_violation() -> None:
    name = "closed_limit_grants_its_share"
    refused = calls(13, 2.5, "refused")
    [violation] = violations(name, OUTAGE, *LOST, *refused, *calls(2, 2.5))
    assert violation == "2 granted before the limit closed, 3 are due: hang@2+4"
    assert violations(name, OUTAGE, *LOST, *refused, *calls(3, 2.5)) == []
    assert violations(name, OUTAGE, *LOST, *refused, *calls(1, 2.5)) == []
    assert violations(name, OUTAGE, moment(1.9, "state_fallback"), *refused) == []
    refused += calls(2, 2.5, "refused")
    assert violations(name, OUTAGE, *LOST, *refused) != []
    for other in ({"fallback": "share"}, {"strategy": "fixed_window"}, {"closed_after": 0.0}):
        assert violations(name, replace(OUTAGE, **other), *LOST, *refused) == []


def test_closed_limit__grants_nothing_after_the_return__is_a_violation() -> None:
    name = "closed_limit_grants_again"
    refused = calls(10, 7, "refused")
    assert violations(name, OUTAGE, *LOST, *refused) == ["none of 10 calls was granted in 2 s after 6.500 s"]
    assert violations(name, OUTAGE, *LOST, *refused, *calls(1, 8)) == []
    assert violations(name, OUTAGE, *LOST, *refused[:9]) == []
    assert violations(name, OUTAGE, *refused) == []
    assert violations(name, replace(OUTAGE, fallback="open"), *LOST, *refused) == []
