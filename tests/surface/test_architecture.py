"""What ARCHITECTURE.md names is there: every file, and every function in the file it is said to be in."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from types import FrameType

from tests.service.running import awaited, running

from comporta.testing import ProcurementServer, Server

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "comporta"
LINES = [
    line for line in (ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines() if "(on its way)" not in line
]
"""What is marked so belongs to what is being built; the mark goes when it is there."""

FILE = re.compile(r"`((?:[\w/]+/)?\w+\.(?:py|lua|js|\*))`")
FOLDER = re.compile(r"`([\w/]+/)`")
PAIR = re.compile(r"`((?:[\w/]+/)?\w+\.(?:py|lua))` `([A-Za-z_][\w.]*)(?:\(\))?`")
NAME = re.compile(r"`([A-Za-z_][\w.]*?)(?:\(\))?`")
DEFINED = re.compile(
    r"""
      \b(?:def|class|function)\s+(\w+)   # a function, a class
    | ^\s*(?:self\.)?(\w+)\s*(?::|=)     # a field, a constant
    | \b(\w+)\s*:\s                      # an argument
    | "(\w+)"                            # what is counted, a key
    | \bTABLE\s+(\w+)                    # a table
    """,
    re.VERBOSE | re.MULTILINE,
)
OTHERS = frozenset(("comporta", "age", "flock", "with", "finally", "threading", "Event", "TIME"))
"""Words that are not ours: a header, what Python and the system call something, the whole."""

SEARCH = "/v1/search?date_from=2026-01-05&date_to=2026-01-06&ufs=SP,RJ"
BESIDE = ("testing/", "service/batch/")
"""What runs on the same loop meanwhile and has no part in it: simulated portals, and who looks for jobs."""


@cache
def sources() -> dict[str, str]:
    files = (path for path in SOURCE.rglob("*") if path.suffix in (".py", ".lua", ".js"))
    return {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in files}


@cache
def defined_in(path: str) -> frozenset[str]:
    return frozenset(name for found in DEFINED.findall(sources()[path]) for name in found if name)


def files_named(name: str) -> list[str]:
    ends = (name,) if not name.endswith("*") else (f"{name[:-1]}py", f"{name[:-1]}lua")
    found = [path for path in sources() if any(f"/{path}".endswith(f"/{end}") for end in ends)]
    return [name] if name in found else found  # a whole path means that one


def test_architecture__files__are_there() -> None:
    named = {name for line in LINES for name in FILE.findall(line)}
    assert len(named) > 100
    assert {name for name in named if not files_named(name) and not (ROOT / name).exists()} == set()


def test_architecture__folders__are_there() -> None:
    roots = (ROOT, SOURCE, SOURCE / "pipeline", SOURCE / "service", SOURCE / "service" / "dashboard")
    named = {name for line in LINES for name in FOLDER.findall(line)}
    assert {name for name in named if not any((root / name).is_dir() for root in roots)} == set()


def test_architecture__functions_beside_a_file__are_in_it() -> None:
    pairs = {pair for line in LINES for pair in PAIR.findall(line)}
    assert len(pairs) > 50
    assert {name for name, _ in pairs if len(files_named(name)) != 1} == set()
    wrong = {
        (name, function)
        for name, function in pairs
        if not set(function.split(".")) <= defined_in(files_named(name)[0])
    }
    assert wrong == set()


def test_architecture__other_names__are_defined_somewhere() -> None:
    stems = {Path(path).stem for path in sources()}
    known = OTHERS | stems | frozenset[str]().union(*(defined_in(path) for path in sources()))
    named = {name for line in LINES for name in NAME.findall(line) if not FILE.fullmatch(f"`{name}`")}
    assert {name for name in named if not set(name.split(".")) <= known} == set()


@awaited
async def test_architecture__walk__names_every_file_that_a_search_goes_through(
    tmp_path: Path, valkey: Server
) -> None:
    """The first search, which fetches, and the second, which does not; on the loop, where all is decided."""
    touched: set[str] = set()

    def noted(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{SOURCE}/"):
            touched.add(path.removeprefix(f"{SOURCE}/"))

    with ProcurementServer(seed=7) as portals:
        variables = {
            "COMPORTA_STATE": f"{valkey.url}?timeout=5",
            "COMPORTA_UPSTREAMS_PNCP_MAX_CONCURRENT": "5",
            "allow_private_addresses": "true",
            "addresses_pncp": portals.pncp.url,
            "addresses_pcp": portals.pcp.url,
        }
        async with running(tmp_path, **variables) as asked:
            sys.setprofile(noted)
            try:
                found = [await asked.client.get(SEARCH) for _ in range(2)]
            finally:
                sys.setprofile(None)
    assert [answer.status_code for answer in found] == [200, 200]
    walk = "\n".join(LINES).partition("## One request")[2].partition("## Decisions")[0]
    assert len(touched) > 50
    assert {path for path in touched if not path.startswith(BESIDE)} - set(FILE.findall(walk)) == set()
