"""The errors that refusals of the cache have as their causes."""

from __future__ import annotations

from comporta.cache.last_errors import ERRORS_MAX, LastErrors


class _StatusError(Exception):
    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class _UniqueError(Exception):
    def __new__(cls, *args: object) -> _UniqueError:
        raise TypeError("use make()")

    @classmethod
    def make(cls) -> _UniqueError:
        return super().__new__(cls)


def test_last_errors__error_with_keywords__is_copied_with_its_attributes() -> None:
    errors = LastErrors()
    errors.record("a", _StatusError("bad gateway", status=502))
    error = errors.get("a")
    assert isinstance(error, _StatusError)
    assert (str(error), error.status) == ("bad gateway", 502)


def test_last_errors__error_that_cannot_be_copied__is_left_out() -> None:
    errors = LastErrors()
    errors.record("a", _UniqueError.make())
    assert errors.get("a") is None


def test_last_errors__more_than_are_kept__drops_the_oldest() -> None:
    errors = LastErrors()
    for number in range(ERRORS_MAX + 1):
        errors.record(str(number), OSError(number))
    assert errors.get("0") is None
    assert str(errors.get("1")) == "1"
