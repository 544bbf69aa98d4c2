"""Every planted bug is found by its seed, which passes without it."""

import pytest
from tests.simulation.planted_bugs import BUGS, SEEDS_MAX, violations


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug__its_seed__is_found_only_with_it(name: str) -> None:
    seed, plant = BUGS[name]
    assert seed < SEEDS_MAX
    assert violations(seed) == []
    assert violations(seed, plant) != []


def test_planted_bugs__number__is_at_least_twelve() -> None:
    assert len(BUGS) >= 12
