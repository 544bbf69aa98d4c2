"""Notices of several sources as one list."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from comporta.service.search.merging import folded, matching, merged
from comporta.service.sources.base import TEXT_CHARS_MAX, Notice, bounded, web_link


def notice(name: str, source: str = "pncp", **more: Any) -> Notice:
    plain: Any = {
        "id": name,
        "sources": [source],
        "agency": None,
        "cnpj": None,
        "uf": "SP",
        "city": None,
        "object": "Aquisição de Uniformes",
        "value": None,
        "modality": 6,
        "modality_name": None,
        "published_at": "2026-01-01",
        "closes_at": None,
        "url": None,
    }
    found: Notice = plain | more
    return found


def test_merged__on_both__is_once_and_the_first_is_believed() -> None:
    first, second = notice("1", value=5.0), notice("1", "pcp", value=7.0, city="Here")
    [found] = merged([[first], [second]])
    assert (found["value"], found["city"], found["sources"]) == (5.0, "Here", ["pncp", "pcp"])
    assert first["sources"] == ["pncp"]
    assert first["city"] is None


def test_merged__many__are_in_order_of_their_day_then_name() -> None:
    found = merged(
        [[notice("b"), notice("c", published_at="2026-01-02")], [notice("a"), notice("d", published_at=None)]]
    )
    assert [one["id"] for one in found] == ["c", "a", "b", "d"]


def test_matching__terms__go_by_letters_not_by_accents_or_capitals() -> None:
    notices = [notice("1"), notice("2", object="Merenda escolar")]
    assert [one["id"] for one in matching(notices, ["AQUISICAO", "nothing"])] == ["1"]
    assert [one["id"] for one in matching(notices, [])] == ["1", "2"]
    assert folded("ÇÃÉ ß") == "cae ss"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["pncp", "pcp"]), st.integers(1, 9)), max_size=60)
)
def test_merged__anything__keeps_every_name_once(drawn: list[tuple[int, str, int]]) -> None:
    lists = [
        [
            notice(str(number), name, published_at=f"2026-01-0{day}")
            for number, name, day in drawn
            if name == source
        ]
        for source in ("pncp", "pcp")
    ]
    found = merged(lists)
    names = [one["id"] for one in found]
    assert sorted(names) == sorted({str(number) for number, *_ in drawn})
    days = [one["published_at"] or "" for one in found]
    assert days == sorted(days, reverse=True)


def test_text__too_long_or_no_link__is_cut_or_left_out() -> None:
    assert len(bounded("x" * 10_000) or "") == TEXT_CHARS_MAX
    assert (bounded(""), bounded(None), bounded(3)) == (None, None, None)
    assert (web_link("javascript:alert(1)"), web_link(None)) == (None, None)
    assert web_link("HTTPS://x") == "HTTPS://x"
