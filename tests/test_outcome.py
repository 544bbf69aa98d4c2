"""The rule that breakers and upstreams share: which result or exception has which outcome."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from email.message import Message
from email.utils import formatdate
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import aiohttp
import anthropic
import botocore.exceptions
import grpc
import httpx
import httpx2
import openai
import pytest
import redis.exceptions
import requests
import urllib3.exceptions
from botocore.retries import standard
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from tests.upstream.drivers import Response

from comporta import CircuitOpenError, LimitReachedError, Outcome, classify
from comporta.client_answers import (
    CAUSES_MAX,
    LOCAL_ERRORS,
    Answer,
    answer_of,
    grpc_status_of,
    has_limit_fields,
    joined_fields,
    response_of,
)
from comporta.errors import StateTimeoutError
from comporta.outcome import (
    AWS_THROTTLING_CODES,
    AWS_TIMEOUT_CODES,
    GRPC_OUTCOMES,
    KINDS,
    CountingRules,
    checked_classifier,
    error_summary,
    retry_after_of,
)

NOW = 1_800_000_000.0
DATE = "Fri, 15 Jan 2027 08:00:10 GMT"
"""10 s after ``NOW``."""


class WithRetryAfter(Exception):  # noqa: N818 - a name as upstreams have it
    retry_after = 7


class WithoutText(Exception):  # noqa: N818 - as above
    def __str__(self) -> str:
        raise RuntimeError("no words")


class RaisesOnAccess:
    def __repr__(self) -> str:
        return "RaisesOnAccess()"

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class ErrorThatRaisesOnAccess(Exception):  # noqa: N818 - as above
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class WithAttributes(Exception):  # noqa: N818 - as above
    def __init__(self, **attributes: Any) -> None:
        super().__init__("status")
        self.__dict__.update(attributes)


class OfGrpc(grpc.RpcError):  # type: ignore[misc]  # grpc has no annotations
    """An error as grpc's calls raise it; those have no public constructor."""

    def __init__(self, code: Any, *metadata: tuple[str, Any]) -> None:
        super().__init__(code)
        self._code, self._metadata = code, metadata

    def code(self) -> Any:
        return self._code

    def trailing_metadata(self) -> Any:
        return self._metadata or None


def of_aws(status: int | None, code: str, **headers: str) -> botocore.exceptions.ClientError:
    metadata: dict[str, Any] = {"HTTPHeaders": {name.replace("_", "-"): v for name, v in headers.items()}}
    if status is not None:
        metadata["HTTPStatusCode"] = status
    answer: Any = {"Error": {"Code": code, "Message": "text"}, "ResponseMetadata": metadata}
    return botocore.exceptions.ClientError(answer, "GetObject")


def of_urllib(status: int, **headers: str) -> HTTPError:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return HTTPError("http://x", status, "text", message, None)


def raised_from(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def aws_result(status: Any, **headers: str) -> dict[str, Any]:
    return {"Body": b"", "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, Outcome("ok")),
        ("text", Outcome("ok")),
        (RaisesOnAccess(), Outcome("ok")),
        (SimpleNamespace(status_code="200", headers={}), Outcome("ok")),
        (SimpleNamespace(status_code=500, headers=None), Outcome("ok")),
        (SimpleNamespace(status_code=True, headers={}), Outcome("ok")),
        (SimpleNamespace(status=7, headers={}), Outcome("ok")),
        (SimpleNamespace(status=502, headers={}), Outcome("failure", True, None, "502")),
        (SimpleNamespace(status=502, headers=[("a", "b")]), Outcome("ok")),
        (Response(200), Outcome("ok")),
        (Response(202, retry_after="30"), Outcome("ok")),
        (Response(301, retry_after="30"), Outcome("ok")),
        (Response(404), Outcome("ok")),
        (Response(404, retry_after="30"), Outcome("ok")),
        (Response(408), Outcome("failure", True, None, "408")),
        (Response(408, retry_after="3"), Outcome("failure", True, 3.0, "408")),
        (Response(200, ratelimit='"day";r=0;t=60'), Outcome("ok", False, 60.0)),
        (Response(403, ratelimit='"day";r=0;t=60'), Outcome("ok", False, 60.0)),
        (Response(200, ratelimit='"day";r=5;t=60'), Outcome("ok")),
        (Response(429), Outcome("refused", True, None, "429")),
        (Response(429, retry_after="3"), Outcome("refused", True, 3.0, "429")),
        (Response(429, retry_after_ms="350"), Outcome("refused", True, 0.35, "429")),
        (Response(429, retry_after=DATE), Outcome("refused", True, 10.0, "429")),
        (Response(429, retry_after="soon"), Outcome("refused", True, None, "429")),
        (Response(429, ratelimit='"day";r=0;t=60'), Outcome("refused", True, 60.0, "429")),
        (Response(500), Outcome("failure", True, None, "500")),
        (Response(501), Outcome("failure", False, None, "501")),
        (Response(503, retry_after="3"), Outcome("failure", True, 3.0, "503")),
        (Response(503, retry_after=DATE), Outcome("failure", True, 10.0, "503")),
        ({"rows": []}, Outcome("ok")),
        (aws_result(200), Outcome("ok")),
        (aws_result(None), Outcome("ok")),
        (aws_result(503, **{"retry-after": "2"}), Outcome("failure", True, 2.0, "503")),
        ({"ResponseMetadata": "text"}, Outcome("ok")),
        (
            Response(200, x_ratelimit_remaining="0", x_ratelimit_reset="1800000010"),
            Outcome("ok", False, 10.0),
        ),
        (SimpleNamespace(code=502, headers={}), Outcome("failure", True, None, "502")),
    ],
    ids=lambda value: value.kind if isinstance(value, Outcome) else type(value).__name__,
)
def test_classify__result__has_the_documented_outcome(result: Any, expected: Outcome) -> None:
    assert classify(result, None, NOW) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("no\nroute"), Outcome("failure", True, None, "OSError: no route")),
        (TimeoutError(), Outcome("failure", True, None, "TimeoutError")),
        (ssl.SSLError("text"), Outcome("failure", True, None, "SSLError: ")),
        (URLError("refused"), Outcome("failure", True, None, "URLError: ")),
        (WithRetryAfter(), Outcome("failure", True, 7.0, "WithRetryAfter")),
        (WithoutText(), Outcome("failure", True, None, "WithoutText")),
        (ErrorThatRaisesOnAccess(), Outcome("failure", True, None, "ErrorThatRaisesOnAccess")),
        (json.JSONDecodeError("text", "", 0), Outcome("failure", False, None, "JSONDecodeError: text")),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "text"), Outcome("failure", reason="UnicodeDecodeError")),
        (requests.JSONDecodeError("text", "", 0), Outcome("failure", reason="JSONDecodeError")),
        (ZeroDivisionError(), Outcome("failure", False, None, "ZeroDivisionError")),
        (WithAttributes(response=None), Outcome("failure", True, None, "WithAttributes: status")),
        (CircuitOpenError("inner", "x", None, 5.0), Outcome("neither", reason="CircuitOpenError: inner: ")),
        (StateTimeoutError("late"), Outcome("neither", reason="StateTimeoutError: late")),
    ],
    ids=lambda value: value.kind if isinstance(value, Outcome) else type(value).__name__,
)
def test_classify__error_without_a_status__has_the_documented_outcome(
    error: Exception, expected: Outcome
) -> None:
    outcome = classify(None, error, NOW)
    assert outcome[:3] == expected[:3]
    assert outcome.reason.startswith(expected.reason)


@pytest.mark.parametrize(
    "error",
    [
        *(TypeError("a"), AttributeError("a"), NameError("a"), UnboundLocalError("a"), KeyError("a")),
        *(IndexError("a"), AssertionError("a"), NotImplementedError("a"), ImportError("a")),
        *(ModuleNotFoundError("a"), ValueError("a")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_classify__mistake_of_the_program__is_neither(error: Exception) -> None:
    assert classify(None, error) == Outcome("neither", reason=error_summary(error))


@pytest.mark.parametrize(
    "error",
    [
        httpx.PoolTimeout("full"),
        httpx2.PoolTimeout("full"),
        urllib3.exceptions.EmptyPoolError(None, "full"),  # type: ignore[arg-type]  # it is not used
        redis.exceptions.MaxConnectionsError("full"),
        *(httpx.LocalProtocolError("a"), httpx.UnsupportedProtocol("a"), httpx.InvalidURL("a")),
        *(httpx2.LocalProtocolError("a"), httpx2.UnsupportedProtocol("a"), httpx2.InvalidURL("a")),
        *(requests.exceptions.InvalidURL("a"), requests.exceptions.MissingSchema("a")),
        *(requests.exceptions.InvalidSchema("a"), requests.exceptions.InvalidHeader("a")),
        requests.exceptions.InvalidProxyURL("a subclass"),
        urllib3.exceptions.LocationParseError("a"),
        *(aiohttp.InvalidURL("a"), aiohttp.NonHttpUrlClientError("a")),
        botocore.exceptions.ParamValidationError(report="a"),
        *(botocore.exceptions.NoCredentialsError(), botocore.exceptions.NoRegionError()),
    ],
    ids=lambda error: f"{type(error).__module__.partition('.')[0]}.{type(error).__name__}",
)
def test_classify__call_that_did_not_reach_the_upstream__is_neither(error: Exception) -> None:
    assert classify(None, error) == Outcome("neither", reason=error_summary(error))


@pytest.mark.parametrize(
    "error",
    [
        *(httpx.ConnectTimeout("a"), httpx.ReadError("a"), httpx.RemoteProtocolError("a")),
        *(httpx2.ConnectError("a"), httpx2.DecodingError("a"), requests.ConnectionError("a")),
        *(requests.Timeout("a"), requests.exceptions.ChunkedEncodingError("a")),
        *(
            aiohttp.ServerDisconnectedError(),
            aiohttp.ClientPayloadError("a"),
            aiohttp.ConnectionTimeoutError(),
        ),
        botocore.exceptions.EndpointConnectionError(endpoint_url="a"),
        *(botocore.exceptions.ReadTimeoutError(endpoint_url="a"), redis.exceptions.ConnectionError("a")),
        openai.APIConnectionError(request=httpx2.Request("GET", "http://x")),
        urllib3.exceptions.ProtocolError("a"),
    ],
    ids=lambda error: f"{type(error).__module__.partition('.')[0]}.{type(error).__name__}",
)
def test_classify__transport_error__is_a_failure_and_may_be_retried(error: Exception) -> None:
    assert classify(None, error)[:3] == ("failure", True, None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (WithAttributes(response=Response(404)), Outcome("ok")),
        (WithAttributes(response=Response(429, retry_after="2")), Outcome("refused", True, 2.0, "429")),
        (WithAttributes(response=Response(500)), Outcome("failure", True, None, "500")),
        (WithAttributes(status_code=404), Outcome("ok")),
        (WithAttributes(http_status=402), Outcome("ok")),
        (WithAttributes(status=429, headers={"retry-after": "2"}), Outcome("refused", True, 2.0, "429")),
        (WithAttributes(status=429, retry_after=3), Outcome("refused", True, 3.0, "429")),
        (WithAttributes(status=404, retry_after=3), Outcome("ok")),
        (WithAttributes(status=503, headers=None), Outcome("failure", True, None, "503")),
        (WithAttributes(code=404, headers={}), Outcome("ok")),
        (WithAttributes(code=HTTPStatus.NOT_FOUND), Outcome("ok")),
        (WithAttributes(code=404), Outcome("failure", True, None, "WithAttributes: status")),
        (WithAttributes(code="404"), Outcome("failure", True, None, "WithAttributes: status")),
        (WithAttributes(status=200), Outcome("failure", True, None, "WithAttributes: status")),
        (WithAttributes(response="text"), Outcome("failure", True, None, "WithAttributes: status")),
        (WithAttributes(response={}), Outcome("failure", True, None, "WithAttributes: status")),
        (of_urllib(404), Outcome("ok")),
        (of_urllib(429, retry_after="4"), Outcome("refused", True, 4.0, "429")),
        (of_urllib(408), Outcome("failure", True, None, "408")),
        (of_urllib(429, retry_after=DATE), Outcome("refused", True, 10.0, "429")),
    ],
)
def test_classify__error_with_a_status__is_classified_by_it(error: Exception, expected: Outcome) -> None:
    assert classify(None, error, NOW) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (of_aws(404, "NoSuchKey"), Outcome("ok")),
        (of_aws(400, "ValidationException"), Outcome("ok")),
        (of_aws(400, "ThrottlingException"), Outcome("refused", True, None, "400 ThrottlingException")),
        (of_aws(503, "SlowDown", retry_after="2"), Outcome("refused", True, 2.0, "503 SlowDown")),
        (of_aws(400, "RequestTimeout"), Outcome("failure", True, None, "400 RequestTimeout")),
        (of_aws(500, "InternalError"), Outcome("failure", True, None, "500 InternalError")),
        (of_aws(501, "NotImplemented"), Outcome("failure", False, None, "501 NotImplemented")),
        (of_aws(None, "ThrottlingException"), Outcome("refused", True, None, "ThrottlingException")),
        (of_aws(None, "InternalError"), Outcome("failure", False, None, "InternalError")),
        (of_aws(200, "SlowDown"), Outcome("refused", True, None, "200 SlowDown")),
    ],
)
def test_classify__error_of_botocore__is_classified_by_code_and_status(
    error: Exception, expected: Outcome
) -> None:
    assert classify(None, error, NOW) == expected


def test_aws_codes__compared_to_those_of_botocore__are_the_same() -> None:
    throttling = set(standard.ThrottledRetryableChecker._THROTTLED_ERROR_CODES)
    transient = set(standard.TransientRetryableChecker._TRANSIENT_ERROR_CODES)
    assert throttling == AWS_THROTTLING_CODES
    assert transient - throttling == AWS_TIMEOUT_CODES


@pytest.mark.parametrize("status", list(grpc.StatusCode), ids=lambda status: status.name)
def test_classify__error_of_grpc__has_the_documented_outcome(status: grpc.StatusCode) -> None:
    outcome = classify(None, OfGrpc(status))
    assert outcome == GRPC_OUTCOMES[status.name]._replace(reason=status.name)
    assert outcome.repeat is (outcome.kind in ("failure", "refused") and status.name != "DATA_LOSS")


@pytest.mark.parametrize(
    ("value", "seconds"), [("250", 0.25), ("-1", None), ("soon", None), (b"250", None), ("0", 0.0)]
)
def test_classify__grpc_pushback__is_a_pause(value: Any, seconds: float | None) -> None:
    metadata = (("other", "1"), ("grpc-retry-pushback-ms", value))
    assert classify(None, OfGrpc(grpc.StatusCode.UNAVAILABLE, *metadata)).pause == seconds


@pytest.mark.parametrize("code", [None, 5, SimpleNamespace(name="OTHER"), SimpleNamespace(name=5)])
def test_classify__grpc_error_without_a_known_status__is_a_failure(code: Any) -> None:
    assert classify(None, OfGrpc(code))[:2] == ("failure", True)


def test_classify__grpc_metadata_raises__has_no_pause() -> None:
    error = OfGrpc(grpc.StatusCode.UNAVAILABLE)
    error.trailing_metadata = None  # type: ignore[method-assign, assignment]  # as a broken interceptor
    assert classify(None, error).pause is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (raised_from(OSError("a"), of_urllib(404)), Outcome("ok")),
        (raised_from(ValueError("a"), of_urllib(503)), Outcome("failure", True, None, "503")),
        (
            raised_from(OSError("a"), LimitReachedError("a", "b", 1.0)),
            Outcome("neither", reason="OSError: a"),
        ),
        (raised_from(OSError("a"), httpx.PoolTimeout("b")), Outcome("neither", reason="OSError: a")),
        (raised_from(OSError("a"), KeyError("b")), Outcome("failure", True, None, "OSError: a")),
    ],
)
def test_classify__error_raised_from_another__is_classified_by_the_answer(
    error: Exception, expected: Outcome
) -> None:
    assert classify(None, error) == expected


def test_classify__endless_chain_of_causes__ends() -> None:
    one, two = OSError("one"), OSError("two")
    one.__cause__, two.__cause__ = two, one
    assert classify(None, one).reason == "OSError: one"
    deep = chain = OSError("deep")
    for _ in range(CAUSES_MAX):
        chain.__cause__ = chain = OSError("deeper")
    chain.__cause__ = of_urllib(404)
    assert classify(None, deep).kind == "failure"


def test_classify__without_now__compares_dates_to_the_current_time() -> None:
    headers = {"retry-after": formatdate(time.time() + 3600, usegmt=True)}
    pause = classify(SimpleNamespace(status=429, headers=headers), None).pause
    assert pause is not None
    assert 3500 < pause <= 3600


@pytest.mark.parametrize("sdk", [openai, anthropic])
def test_classify__error_of_an_sdk__is_classified_by_its_response(sdk: Any) -> None:
    request = httpx2.Request("POST", "http://x")
    refused = httpx2.Response(429, headers={"retry-after-ms": "1500"}, request=request)
    assert classify(None, sdk.RateLimitError("a", response=refused, body=None)) == Outcome(
        "refused", True, 1.5, "429"
    )
    invalid = sdk.APIResponseValidationError(httpx2.Response(200, request=request), None)
    assert classify(None, invalid).kind == "failure"


def test_local_errors__each_name__has_one_dot() -> None:
    assert all(name.count(".") == 1 for name in LOCAL_ERRORS)


class Unreadable(dict[str, str]):
    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no names")


@pytest.mark.parametrize(
    "headers",
    [Unreadable(a="b"), {5: "x"}, {b"retry-after": b"5"}],
    ids=["raises", "number", "bytes"],
)
def test_classify__headers_that_cannot_be_read__have_no_pause(headers: Any) -> None:
    assert classify(SimpleNamespace(status=429, headers=headers), None) == Outcome(
        "refused", True, None, "429"
    )


@pytest.mark.parametrize("kind", [dict, httpx.Headers])
@pytest.mark.parametrize("name", ["Retry-After", "Retry-After-Ms", "RateLimit", "X-Rate-Limit-Reset"])
def test_has_limit_fields__any_name_about_limits__is_found(kind: Any, name: str) -> None:
    assert has_limit_fields(kind({"Date": "x", name: "5"}))
    assert not has_limit_fields(kind({"Date": "x", "Retry": "5"}))


def test_has_limit_fields__names_cannot_be_read__is_false() -> None:
    class Unreadable(dict[str, str]):
        def __iter__(self) -> Iterator[str]:
            raise RuntimeError("closed")

    assert not has_limit_fields(Unreadable({"Retry-After": "5"}))


def test_joined_fields__repeated_names_and_other_types__joins_text_and_ignores_the_rest() -> None:
    assert joined_fields(CIMultiDict([("A", "1"), ("a", "2"), ("B", "3")])) == {"a": "1, 2", "b": "3"}
    odd: Any = {b"A": "1", "B": 2, "C": "3"}
    assert joined_fields(odd) == {"c": "3"}


def test_grpc_status_of__no_error_of_grpc_or_no_name__is_none() -> None:
    assert grpc_status_of(OfGrpc(grpc.StatusCode.UNAVAILABLE)) == "UNAVAILABLE"
    assert grpc_status_of(OfGrpc(SimpleNamespace(name=5))) is None
    assert grpc_status_of(WithAttributes(code=lambda: grpc.StatusCode.UNAVAILABLE)) is None


@pytest.mark.parametrize("name", ["status_code", "status"])
def test_response_of__number_that_is_no_status__is_none(name: str) -> None:
    found = [
        response_of(SimpleNamespace(**{name: status}, headers={})) is not None
        for status in (99, 100, 599, 600)
    ]
    assert found == [False, True, True, False]


def test_response_of__aws_metadata_without_headers__has_none() -> None:
    result = {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": ["retry-after"]}}
    assert response_of(result) == Answer(200, None)


def test_response_of__dict_that_is_not_of_boto3__is_none() -> None:
    assert response_of({"rows": []}) is None


def test_response_of__multi_dict__keeps_status_and_headers() -> None:
    headers = CIMultiDictProxy(CIMultiDict({"A": "b"}))
    assert response_of(SimpleNamespace(status=204, headers=headers)) == Answer(204, headers)
    assert response_of(None) is None
    assert answer_of(OSError()) is None


@given(
    st.one_of(st.none(), st.integers(-10, 1000), st.text(max_size=3), st.booleans()),
    st.one_of(st.none(), st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=3), st.text()),
    st.one_of(st.none(), st.text(max_size=3), st.dictionaries(st.just("Error"), st.text(max_size=3))),
)
def test_classify__any_attributes__returns_a_valid_outcome(status: Any, headers: Any, response: Any) -> None:
    for name in ("status_code", "status", "http_status", "code"):
        thing = SimpleNamespace(**{name: status, "headers": headers})
        error = WithAttributes(**{name: status, "headers": headers, "response": response})
        assert classify(thing, None, NOW).kind in KINDS
        assert classify(None, error, NOW).kind in KINDS
        assert classify(None, WithAttributes(response=thing), NOW).kind in KINDS


def test_error_summary__long_text__is_truncated() -> None:
    assert len(error_summary(OSError("x" * 1000))) < 200


def test_error_summary__no_text__is_the_type() -> None:
    assert error_summary(OSError()) == "OSError"
    assert error_summary(WithoutText()) == "WithoutText"


@pytest.mark.parametrize("seconds", [True, "3", None, float("inf"), float("nan"), -1.0])
def test_retry_after_of__no_duration__is_zero(seconds: Any) -> None:
    assert retry_after_of(WithAttributes(retry_after=seconds)) == 0.0


@pytest.mark.parametrize("pause", [None, 0.0, 0.5, 1e300])
def test_checked_classifier__valid_pause__is_kept(pause: float | None) -> None:
    outcome = Outcome("refused", pause=pause)
    assert checked_classifier(lambda *_: outcome)(None, None) is outcome


@pytest.mark.parametrize("pause", [-0.001, float("inf"), float("nan")])
def test_checked_classifier__invalid_pause__raises(pause: float) -> None:
    check = checked_classifier(lambda *_: Outcome("refused", pause=pause))
    with pytest.raises(ValueError, match=f"pause must be None or at least 0 seconds, got {pause}"):
        check(None, None)


def rules(**given: Any) -> Any:
    return CountingRules.from_options(
        given.get("ignore"), given.get("failures"), given.get("counts_error"), given.get("counts_result")
    ).apply_to(classify)


def test_rules__none__are_the_classifier_itself() -> None:
    assert rules() is classify


@pytest.mark.parametrize("given", [OSError, (KeyError, OSError), lambda error: isinstance(error, OSError)])
def test_rules__ignore_and_failures__take_a_class_a_tuple_or_a_function(given: Any) -> None:
    assert rules(ignore=given)(None, TimeoutError("a")) == Outcome("neither", reason="TimeoutError: a")
    assert rules(ignore=given)(None, RuntimeError("a")).kind == "failure"
    assert rules(failures=given)(None, of_urllib(404))[:2] == ("failure", False)  # an HTTPError is an OSError
    assert rules(failures=given)(None, ValueError("a")).kind == "neither"


def test_rules__failures__keep_the_pause_and_add_a_reason() -> None:
    classified = rules(failures=Exception)
    assert classified(None, of_urllib(429, retry_after="4")) == Outcome("failure", True, 4.0, "429")
    assert classified(None, KeyError("a")) == Outcome("failure", False, None, "KeyError: 'a'")
    assert classified(None, of_urllib(404)).reason == "HTTPError: HTTP Error 404: text"


def test_rules__ignore_and_failures_match__ignore_comes_first() -> None:
    assert rules(ignore=OSError, failures=Exception)(None, OSError()).kind == "neither"


@pytest.mark.parametrize("name", ["ignore", "failures", "counts_error"])
def test_rules__error_of_comporta__is_neither_whatever_they_say(name: str) -> None:
    assert rules(**{name: lambda _: True})(None, LimitReachedError("a", "b", 1.0)).kind == "neither"


def test_rules__counts_error__decides_about_all_errors_but_refusals() -> None:
    classified = rules(counts_error=lambda error: isinstance(error, KeyError), ignore=IndexError)
    assert classified(None, KeyError("a")) == Outcome("failure", False, None, "KeyError: 'a'")
    assert classified(None, OSError("a")) == Outcome("ok")
    assert classified(None, IndexError("a")).kind == "neither"
    assert classified(None, of_urllib(429)).kind == "refused"
    assert classified(Response(503), None).kind == "failure"
    assert classified(None, of_urllib(403, ratelimit='"day";r=0;t=60')) == Outcome("ok", pause=60.0)
    every = rules(counts_error=lambda _: True)
    assert every(None, of_urllib(404)).reason == "HTTPError: HTTP Error 404: text"


def test_rules__counts_result__decides_about_all_results_but_refusals() -> None:
    classified = rules(counts_result=lambda result: result == 5)
    assert classified(5, None) == Outcome("failure", False, None, "BadResultError: 5")
    assert classified(Response(503), None) == Outcome("ok")
    assert classified(Response(429), None).kind == "refused"
    assert classified(None, OSError()).kind == "failure"
    assert classified(Response(200, ratelimit='"day";r=0;t=60'), None) == Outcome("ok", pause=60.0)


@pytest.mark.parametrize("given", [5, "OSError", BaseException, (OSError, 5), int])
@pytest.mark.parametrize("name", ["ignore", "failures"])
def test_rules__not_a_filter__raises_naming_the_option(name: str, given: Any) -> None:
    message = f"{name} must be a subclass of Exception, a tuple of them or a function of one, got "
    with pytest.raises(TypeError, match=message):
        rules(**{name: given})
