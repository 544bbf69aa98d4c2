"""Merging notices of several sources."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from comporta.service.search.merge import filter_notices, merge_notices
from comporta.service.sources.base import TEXT_CHARS_MAX, Notice, fold_text, truncated_text, web_link


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
    merged: Notice = plain | more
    return merged


def test_merge_notices__in_both_sources__first_source_wins() -> None:
    first, second = notice("1", value=5.0), notice("1", "pcp", value=7.0, city="Here")
    [merged] = merge_notices([[first], [second]])
    assert (merged["value"], merged["city"], merged["sources"]) == (5.0, "Here", ["pncp", "pcp"])
    assert first["sources"] == ["pncp"]
    assert first["city"] is None


def test_merge_notices__same_buyer_and_object__is_the_same_notice() -> None:
    first, second = notice("1", cnpj="12345678000195"), notice("pcp:9", "pcp", cnpj="12.345.678/0001-95")
    [merged] = merge_notices([[first], [second, second]])
    assert (merged["id"], merged["sources"]) == ("1", ["pncp", "pcp"])


def test_merge_notices__buyer_and_object_of_several_or_no_buyer__stays_apart() -> None:
    first = [notice("1", cnpj="5"), notice("2", cnpj="5"), notice("3"), notice("4", cnpj="6", object="")]
    second = [notice("a", "pcp", cnpj="5"), notice("b", "pcp"), notice("c", "pcp", cnpj="6", object="")]
    assert len(merge_notices([first, second])) == 7


def test_merge_notices__many__are_sorted_by_date_then_id() -> None:
    merged = merge_notices(
        [[notice("b"), notice("c", published_at="2026-01-02")], [notice("a"), notice("d", published_at=None)]]
    )
    assert [one["id"] for one in merged] == ["c", "a", "b", "d"]


def test_filter_notices__term_of_accents_only__is_in_no_object() -> None:
    notices = [notice("1")]
    assert filter_notices(notices, ["\u0301\u0301"]) == []


def test_filter_notices__terms__ignore_accents_and_case() -> None:
    notices = [notice("1"), notice("2", object="Merenda escolar")]
    assert [one["id"] for one in filter_notices(notices, ["AQUISICAO", "nothing"])] == ["1"]
    assert [one["id"] for one in filter_notices(notices, [])] == ["1", "2"]
    assert fold_text("ÇÃÉ ß") == "cae ss"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["pncp", "pcp"]), st.integers(1, 9)), max_size=60)
)
def test_merge_notices__any_lists__keep_every_id_once(drawn: list[tuple[int, str, int]]) -> None:
    lists = [
        [
            notice(str(number), name, published_at=f"2026-01-0{day}")
            for number, name, day in drawn
            if name == source
        ]
        for source in ("pncp", "pcp")
    ]
    merged = merge_notices(lists)
    names = [one["id"] for one in merged]
    assert sorted(names) == sorted({str(number) for number, *_ in drawn})
    days = [one["published_at"] or "" for one in merged]
    assert days == sorted(days, reverse=True)


def test_truncated_text__too_long_or_no_link__is_cut_or_omitted() -> None:
    assert len(truncated_text("x" * 10_000) or "") == TEXT_CHARS_MAX
    assert (truncated_text(""), truncated_text(None), truncated_text(3)) == (None, None, None)
    assert (web_link("javascript:alert(1)"), web_link(None)) == (None, None)
    assert web_link("HTTPS://x") == "HTTPS://x"
