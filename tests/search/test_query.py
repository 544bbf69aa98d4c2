"""What a client asks for: one form for all who mean the same, and a sentence for what makes no sense."""

from __future__ import annotations

from datetime import date

import pytest

from comporta.service.search.query import (
    ANYBODY,
    LIMIT,
    QUERY_BYTES_MAX,
    UFS,
    QueryError,
    Question,
    SearchQuery,
    read_query,
)

DAYS = "date_from=2026-01-01&date_to=2026-01-31"


def read(text: str) -> SearchQuery:
    return read_query(f"{DAYS}{text}".encode(), 31)


def test_query__only_days__means_everything_else_as_usual() -> None:
    found = read("")
    assert found.question == Question(date(2026, 1, 1), date(2026, 1, 31), 6, UFS)
    assert (found.terms, found.user, found.limit, found.offset) == ((), ANYBODY, LIMIT, 0)


@pytest.mark.parametrize(
    "text", ["&ufs=SP,RJ", "&ufs=rj&ufs=sp", "&ufs=SP,%20RJ,SP,", "&ufs=sp,rj&modality=6"]
)
def test_query__said_in_other_words__is_the_same_question(text: str) -> None:
    assert read(text).question == read("&ufs=RJ,SP").question


def test_query__everything_told__is_read() -> None:
    found = read("&modality=8&terms=merenda,caf%C3%A9&user=ana&limit=10&offset=20")
    assert found == SearchQuery(
        Question(date(2026, 1, 1), date(2026, 1, 31), 8, UFS), ("merenda", "café"), "ana", 10, 20
    )


def test_question__kept_as_parameters__is_found_again() -> None:
    question = read("&ufs=SP,RJ").question
    assert Question.of(question.params("pncp")) == question
    assert question.params("pncp") != question.params("pcp")


@pytest.mark.parametrize(
    ("raw", "field", "said"),
    [
        ("", "date_from", "must be given, as YYYY-MM-DD, got nothing"),
        (
            "date_from=2026-02-30&date_to=2026-03-01",
            "date_from",
            "that exists, as YYYY-MM-DD, got '2026-02-30'",
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
        (f"{DAYS}&terms=a", "terms", "must be 2 to 100 printable characters each, got 'a'"),
        (f"{DAYS}&terms=a%00b", "terms", "printable"),
        (f"{DAYS}&terms=%CC%81%CC%81", "terms", "must be 2 to 100 printable characters each"),
        (f"{DAYS}&terms=" + ",".join(f"term{n}" for n in range(21)), "terms", "must be at most 20, got 21"),
        (f"{DAYS}&user=", "user", "must be 1 to 200 printable characters, got ''"),
        (f"{DAYS}&user=%0A", "user", "printable"),
        (f"{DAYS}&uf=SP", "query", "must have no fields but date_from"),
        (f"{DAYS}&user=%FF", "query", "must be fields in UTF-8"),
        ("a=1&" * 300, "query", "200 at the most"),
        ("é", "query", "must be fields in UTF-8"),
        ("x" * (QUERY_BYTES_MAX + 1), "query", f"must be at most {QUERY_BYTES_MAX} bytes"),
    ],
)
def test_query__nonsense__names_the_field_what_is_allowed_and_what_came(
    raw: str, field: str, said: str
) -> None:
    with pytest.raises(QueryError) as caught:
        read_query(raw.encode(), 31)
    assert caught.value.field == field
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400
