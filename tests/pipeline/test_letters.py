"""Dead letters are on the disk when they are said to be, and never go away by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.support import files_of_at_most

from comporta.errors import DeadLettersError, DeadLettersFullError
from comporta.pipeline.letters import DeadLetters, Letter
from comporta.pipeline.tail import CHUNK_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dead.jsonl"


def test_letters__appended__are_read_with_line_reason_and_time(path: Path) -> None:
    letters = DeadLetters(path)
    letters.append({"id": 1}, ValueError("no"), attempts=4, key="k", position=17)
    letters.extend([Letter("a", "b"), Letter("c", "d" * 5000, at=7.0)])
    letters.close()
    letters.close()
    first, second, third = DeadLetters.read(path)
    assert (first.item, first.reason, first.attempts, first.key, first.position, first.line) == (
        *({"id": 1}, "no", 4, "k", 17),
        1,
    )
    assert first.at > 1_700_000_000
    assert (second.item, second.attempts, second.line) == ("a", 1, 2)
    assert (len(third.reason), third.at, third.line) == (2000, 7.0, 3)


def test_letters__reopened__go_on_behind_those_there(path: Path) -> None:
    for number in range(3):
        letters = DeadLetters(path)
        letters.append(number, "again")
        letters.close()
    assert [letter.item for letter in DeadLetters.read(path)] == [0, 1, 2]


class Loop(dict[str, Any]):
    pass


@pytest.mark.parametrize(
    ("item", "read"),
    [
        (date(2026, 2, 3), "2026-02-03"),
        ({"a": 1j}, {"a": "1j"}),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ("\ud800\n", "\ud800\n"),
    ],
)
def test_letters__what_json_has_no_form_for__is_kept_as_text(path: Path, item: Any, read: Any) -> None:
    DeadLetters(path).append(item, "odd")
    (letter,) = DeadLetters.read(path)
    assert letter.item == read


@pytest.mark.parametrize("torn", [b'{"at": 1, "rea', b'{"at": "' + b"x" * (CHUNK_BYTES + 10)])
def test_letters__half_a_line_of_a_killed_process__is_cut_off(path: Path, torn: bytes) -> None:
    DeadLetters(path).append(1, "whole")
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert [letter.item for letter in DeadLetters.read(path)] == [1], "not a letter yet"
    DeadLetters(path).open()
    assert path.read_bytes() == whole
    path.write_bytes(torn)
    DeadLetters(path).append(2, "next")
    assert [letter.item for letter in DeadLetters.read(path)] == [2]


def test_letters__bound_reached__is_an_error_and_nothing_goes_away(path: Path) -> None:
    letters = DeadLetters(path, max_bytes=200)
    letters.append(1, "fits")
    with pytest.raises(DeadLettersFullError, match="over the bound of 200"):
        letters.extend([Letter(2, "does not"), Letter(3, "fit together")])
    assert [letter.item for letter in DeadLetters.read(path)] == [1]


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", "3", '{"reason": "no item"}', '{"item": 1}', "\x80"], ids=range(6)
)
def test_letters__line_that_is_none__is_named(path: Path, line: str) -> None:
    DeadLetters(path).append(1, "whole")
    with path.open("ab") as out:
        out.write(line.encode("latin-1") + b"\n")
    letters = DeadLetters.read(path)
    assert next(letters).item == 1
    with pytest.raises(DeadLettersError, match="line 2") as raised:
        next(letters)
    assert raised.value.line == 2


def test_letters__folder_that_is_not_there__is_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "dead.jsonl"
    for verb in (DeadLetters(nowhere).open, lambda: DeadLetters(nowhere).append(1, "x")):
        with pytest.raises(DeadLettersError, match="No such file"):
            verb()
    with pytest.raises(DeadLettersError, match="No such file"):
        next(DeadLetters.read(nowhere))


def test_letters__no_room_on_the_disk__keeps_all_or_nothing(path: Path) -> None:
    letters = DeadLetters(path)
    letters.append(1, "whole")
    size = path.stat().st_size
    with files_of_at_most(size + 10), pytest.raises(DeadLettersError, match="File too large"):
        letters.append(2, "does not fit")
    assert path.stat().st_size == size
    letters.append(3, "fits again")
    assert [letter.item for letter in DeadLetters.read(path)] == [1, 3]


def test_letters__two_processes__share_a_file(path: Path) -> None:
    program = (
        "import sys\n"
        "from comporta.pipeline.letters import DeadLetters\n"
        "letters = DeadLetters(sys.argv[1])\n"
        "for number in range(50): letters.append([sys.argv[2], number], 'x' * 500)\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, path, name]) for name in "ab"]
    assert [one.wait(60) for one in started] == [0, 0]
    items = [letter.item for letter in DeadLetters.read(path)]
    for name in "ab":
        assert [number for one, number in items if one == name] == list(range(50))


def test_letters__forked__have_a_descriptor_of_their_own(path: Path) -> None:
    letters = DeadLetters(path)
    unused = DeadLetters(path)
    letters.append("parent", "x")
    child = os.fork()
    if child == 0:
        letters.append("child", "x")
        os._exit(0 if unused._file.descriptor is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    letters.append("parent", "x")
    assert [letter.item for letter in DeadLetters.read(path)] == ["parent", "child", "parent"]


@pytest.mark.parametrize(
    ("given", "said"), [(0, "at least 1, got 0"), ("1", "an int, got '1'"), (True, "an int")]
)
def test_letters__bad_bound__is_named(path: Path, given: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"max_bytes must be {said}"):
        DeadLetters(path, max_bytes=given)


@pytest.mark.parametrize("there", [b"first\nlast", b'{\n "a": 1\n}', b'{"a": 1}\n{"b'])
def test_letters__file_of_somebody_else__is_left_alone(path: Path, there: bytes) -> None:
    path.write_bytes(there)
    for verb in (DeadLetters(path).open, lambda: DeadLetters(path).append(1, "x")):
        with pytest.raises(DeadLettersError, match="it holds no dead letters"):
            verb()
    assert path.read_bytes() == there


def test_letters__whole_letter_that_lacks_the_end_of_its_line__is_kept(path: Path) -> None:
    DeadLetters(path).append(1, "whole")
    path.write_bytes(path.read_bytes().rstrip())
    DeadLetters(path).append(2, "next")
    assert [letter.item for letter in DeadLetters.read(path)] == [1, 2]


def test_letters__full_file_moved_away__go_on_in_a_new_one(path: Path) -> None:
    letters = DeadLetters(path, max_bytes=200)
    letters.append(1, "x")
    with pytest.raises(DeadLettersFullError, match="move the file away, and go on"):
        letters.append("y" * 200, "x")
    path.rename(path.with_suffix(".old"))
    letters.append(2, "x")
    assert [letter.item for letter in DeadLetters.read(path)] == [2]
    letters.close()


class Mute:
    """Says nothing of itself."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_letters__item_that_cannot_be_told__is_kept_all_the_same(path: Path) -> None:
    letters = DeadLetters(path)
    letters.append({"a": Mute()}, "x")
    letters.append({("no", "text"): 1}, "x")
    told, untold = DeadLetters.read(path)
    assert "Mute object" in told.item["a"]
    assert untold.key is None
    letters.close()
