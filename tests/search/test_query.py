"""Parsing queries: equivalent queries are equal, and errors name the field."""

from __future__ import annotations

from datetime import date

import pytest

from comporta.service.search.query import (
    ANONYMOUS,
    DEFAULT_LIMIT,
    QUERY_BYTES_MAX,
    UFS,
    QueryError,
    SearchQuery,
    SearchScope,
    parse_query,
)

DAYS = "date_from=2026-01-01&date_to=2026-01-31"


def parse(text: str) -> SearchQuery:
    return parse_query(f"{DAYS}{text}".encode(), 31)


def test_query__only_dates__uses_defaults_for_the_rest() -> None:
    query = parse("")
    assert query.scope == SearchScope(date(2026, 1, 1), date(2026, 1, 31), 6, UFS)
    assert (query.terms, query.user, query.limit, query.offset) == ((), ANONYMOUS, DEFAULT_LIMIT, 0)


@pytest.mark.parametrize(
    "text", ["&ufs=SP,RJ", "&ufs=rj&ufs=sp", "&ufs=SP,%20RJ,SP,", "&ufs=sp,rj&modality=6"]
)
def test_query__equivalent_forms__are_equal(text: str) -> None:
    assert parse(text).scope == parse("&ufs=RJ,SP").scope


def test_query__all_fields__are_parsed() -> None:
    query = parse("&modality=8&terms=merenda,caf%C3%A9&user=ana&limit=10&offset=20")
    assert query == SearchQuery(
        SearchScope(date(2026, 1, 1), date(2026, 1, 31), 8, UFS), ("merenda", "café"), "ana", 10, 20
    )


def test_scope__as_cache_params__round_trips() -> None:
    question = parse("&ufs=SP,RJ").scope
    assert SearchScope.from_cache_params(question.cache_params("pncp")) == question
    assert question.cache_params("pncp") != question.cache_params("pcp")


@pytest.mark.parametrize(
    ("raw", "field", "message"),
    [
        ("", "date_from", "must be given, as YYYY-MM-DD, got nothing"),
        (
            "date_from=2026-02-30&date_to=2026-03-01",
            "date_from",
            "existing date in the form YYYY-MM-DD, got '2026-02-30'",
        ),
        ("date_from=20260101&date_to=2026-03-01", "date_from", "got '20260101'"),
        ("date_from=2026-01-02&date_to=2026-01-01", "date_to", "0 to 30 days after date_from, 2026-01-02"),
        ("date_from=2026-01-01&date_to=2026-02-01", "date_to", "got '2026-02-01'"),
        (f"{DAYS}&date_to=2026-01-03", "date_to", "must be given once"),
        (f"{DAYS}&ufs=SP,XX", "ufs", "got 'XX'"),
        (f"{DAYS}&ufs=", "ufs", "must be among AC"),
        (f"{DAYS}&modality=0", "modality", "must be 1 to 15, got '0'"),
        (f"{DAYS}&modality=%C2%B2", "modality", "must be 1 to 15"),
        (f"{DAYS}&limit=5001", "limit", "must be 1 to 5000, got '5001'"),
        (f"{DAYS}&offset=-1", "offset", "must be 0 to 100000, got '-1'"),
        (f"{DAYS}&terms={'a' * 101}", "terms", "must be 1 to 100 characters each, none a control character"),
        (f"{DAYS}&terms=a%00b", "terms", "control character"),
        (f"{DAYS}&terms=" + ",".join(f"term{n}" for n in range(21)), "terms", "must be at most 20, got 21"),
        (f"{DAYS}&user=", "user", "must be 1 to 200 printable characters, got ''"),
        (f"{DAYS}&user=%0A", "user", "printable"),
        (f"{DAYS}&uf=SP", "query", "must have no fields except date_from"),
        (f"{DAYS}&user=%FF", "query", "must be at most 200 fields in UTF-8"),
        ("a=1&" * 300, "query", "at most 200"),
        ("é", "query", "must be at most 200 fields in UTF-8"),
        ("x" * (QUERY_BYTES_MAX + 1), "query", f"must be at most {QUERY_BYTES_MAX} bytes"),
    ],
)
def test_query__invalid__names_field_allowed_values_and_value(raw: str, field: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(raw.encode(), 31)
    assert caught.value.field == field
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400
