"""Any file and any variable give either settings or a ``ValueError`` that names the file or variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support import max_examples

from comporta.settings import Settings, explain, load_settings
from comporta.settings.environment import VARIABLE_FAMILIES

FILE = """\
state = "redis://:hunter2@localhost:6379/0"
[limits.search]
limit = "100/minute"
[limits."a.b"]
rate = 0.5
capacity = 5
[namespaces]
search = "search"
[breakers.pncp]
threshold = 50
cooldown_seconds = 1_20.0
[upstreams.pncp]
limit = "10/s"
fallback = 'open'
max_concurrent = 10
breaker = {threshold = 50, failure_ratio = 0.5}
retry.jitter = [
  0, # from
  0.5
]
[upstreams.pncp.degradation]
rule = \"\"\"steps\"\"\"
"""
SIGNS = [
    "[",
    "]",
    "{",
    "}",
    "=",
    ".",
    ",",
    '"',
    "'",
    '"""',
    "'''",
    "#",
    "\n",
    "\\",
    "-",
    "\r",
    "\x00",
    "é",
    " ",
]
WORDS = ["true", "inf", "nan", "0", "[[limits]]", "a.b = 1", "breaker = 'x'\n", "[upstreams.pncp]\n"]
PIECES = st.sampled_from([*SIGNS, *WORDS])
EDITS = st.lists(
    st.tuples(st.integers(0, len(FILE)), st.integers(0, 30), PIECES | st.text(max_size=3)), max_size=4
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzing") / "f.toml"


def load_result(path: Path, data: bytes, environ: dict[str, str]) -> Settings | str:
    """Return the settings, which must not show the password, or the error message."""
    path.write_bytes(data)
    try:
        loaded = load_settings(path, environ)
    except ValueError as error:
        return str(error)
    if loaded.state and ":hunter2@" in loaded.state:
        assert "hunter2" not in repr(loaded) + repr(explain(loaded))
    return loaded


@settings(max_examples=max_examples(400), deadline=None)
@given(EDITS)
@example([])
def test_file__random_edits__gives_settings_or_a_value_error(
    path: Path, edits: list[tuple[int, int, str]]
) -> None:
    text = FILE
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    result = load_result(path, text.encode(errors="surrogatepass"), {})
    assert isinstance(result, Settings) or result.startswith(str(path))


@settings(max_examples=max_examples(200), deadline=None)
@given(st.binary(max_size=80))
def test_file__random_bytes__gives_settings_or_a_value_error(path: Path, data: bytes) -> None:
    result = load_result(path, data, {})
    assert isinstance(result, Settings) or result.startswith(str(path))


VARIABLES = st.sampled_from(
    [
        family.variable(name, ending)
        for family in VARIABLE_FAMILIES
        for ending in family.fields
        for name in ("pncp", "new", "")
    ]
)
TEXTS = st.sampled_from(
    ["", "1", "0.5", "-1", "nan", "inf", "true", "false", "10/s", "full", "0,1", "1,,", "[", "open"]
)


@settings(max_examples=max_examples(400), deadline=None)
@given(st.dictionaries(VARIABLES, TEXTS | st.text(max_size=5), max_size=4))
def test_variables__random_text__give_settings_or_a_value_error(path: Path, environ: dict[str, str]) -> None:
    result = load_result(path, FILE.encode(), environ)
    assert isinstance(result, Settings) or any(name in result for name in environ)
