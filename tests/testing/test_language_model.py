"""The simulated provider of a language model: what its answers cost, and when it refuses."""

from __future__ import annotations

import httpx2

from comporta.testing import SimulatedLanguageModel


def ask(model: SimulatedLanguageModel, **body: object) -> httpx2.Response:
    return httpx2.post(model.url, json=body) if body else httpx2.get(model.url)


def test_model__within_its_limits__answers_with_the_usage() -> None:
    with SimulatedLanguageModel() as model:
        answer = ask(model, prompt="Hello", max_tokens=5)
        assert answer.json()["usage"]["total_tokens"] == model.tokens_used == 5
        assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
        assert answer.headers["x-ratelimit-remaining-tokens"] == "99995"
        assert ask(model).json()["usage"]["total_tokens"] >= 1
        assert (model.accepted, model.refused) == (2, 0)


def test_model__tokens_used_up__refuses_with_retry_after() -> None:
    with SimulatedLanguageModel(tokens_per_minute=60, mean_tokens=6000) as model:
        refused = ask(model, prompt="Hello", max_tokens=70)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "10"
        assert (model.accepted, model.refused, model.tokens_used) == (0, 1, 0)


def test_model__too_many_requests__refuses_with_retry_after() -> None:
    with SimulatedLanguageModel(requests_per_second=1 / 60) as model:
        assert [ask(model).status_code for _ in range(2)] == [200, 429]


def test_model__same_seed__costs_the_same() -> None:
    costs = []
    for _ in range(2):
        with SimulatedLanguageModel(seed=3) as model:
            costs.append([ask(model).json()["usage"]["total_tokens"] for _ in range(3)])
    assert costs[0] == costs[1]
