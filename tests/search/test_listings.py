"""Listings of a source, combined into notices by UF and what they cover."""

from __future__ import annotations

from datetime import date
from typing import Any

from tests.search.test_merge import notice

from comporta.service.search.listings import ListedNotices, combine_listings
from comporta.service.search.query import UFS
from comporta.service.sources.base import Listing, Notice

FIRST, SECOND = date(2026, 1, 1), date(2026, 1, 2)
DAYS = [Listing(FIRST, FIRST), Listing(SECOND, SECOND)]


def of_uf(uf: str) -> Listing:
    return Listing(FIRST, SECOND, 6, uf)


def is_auction(one: Notice) -> bool:
    return one["modality_name"] == "Pregão"


def numbers(answers: dict[str, Any]) -> dict[str, list[str]]:
    return {uf: [one["id"] for one in answer["notices"]] for uf, answer in answers.items()}


def test_combine__listings_of_ufs__cover_those_that_were_read() -> None:
    listed = {of_uf("SP"): ListedNotices([notice("1")], True), of_uf("RJ"): ListedNotices([], False)}
    answers, coverage = combine_listings(listed, [of_uf("MA")], ["MA", "RJ", "SP"], is_auction)
    assert numbers(answers) == {"RJ": [], "SP": ["1"]}
    assert [answers[uf]["truncated"] for uf in ("RJ", "SP")] == [False, True]
    assert answers["SP"]["truncated_days"] == answers["SP"]["missing_days"] == []
    assert (coverage.succeeded, coverage.failed) == (("RJ", "SP"), ("MA",))


def test_combine__listings_of_days__are_filtered_by_uf_and_modality() -> None:
    auctions = [notice("1", modality_name="Pregão"), notice("2", modality_name="Pregão", uf="RJ")]
    listed = {DAYS[0]: ListedNotices([*auctions, notice("3")], False), DAYS[1]: ListedNotices([], True)}
    answers, coverage = combine_listings(listed, [], ["MA", "SP"], is_auction)
    assert numbers(answers) == {"MA": [], "SP": ["1"]}
    assert answers["MA"]["truncated_days"] == ["2026-01-02"]
    assert coverage.is_complete


def test_combine__day_missing__covers_no_uf_and_keeps_the_other_days() -> None:
    listed = {DAYS[0]: ListedNotices([notice("1", modality_name="Pregão")], False)}
    answers, coverage = combine_listings(listed, DAYS[1:], ["MA", "SP"], is_auction)
    assert numbers(answers) == {"MA": [], "SP": ["1"]}
    assert answers["SP"]["missing_days"] == ["2026-01-02"]
    assert (coverage.succeeded, coverage.failed) == ((), ("MA", "SP"))


def test_combine__notice_without_a_uf__is_in_searches_for_all_ufs() -> None:
    listed = {DAYS[0]: ListedNotices([notice("1", modality_name="Pregão", uf="")], False)}
    everywhere, coverage = combine_listings(listed, [], UFS, is_auction)
    assert sum(len(found) for found in numbers(everywhere).values()) == 1
    assert coverage.total_requested == len(UFS)
    assert numbers(combine_listings(listed, [], ["SP"], is_auction)[0]) == {"SP": []}
