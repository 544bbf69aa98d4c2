"""Names and prose follow one vocabulary: unique class names, nouns for modules, ``_flow`` for flows.

A reader who knows the common words of the field should need no glossary.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "comporta"

ESTABLISHED = {
    "shared": "the name of the URL scheme shared://",
    "testing": "the usual name of a package of test helpers, as in numpy.testing",
    "formula_escaping": "the established word for making cell contents harmless",
}
"""Module and package names that are participles or gerunds on purpose, with the reason."""

ESTABLISHED_FUNCTIONS = {
    "cached": "what decorators that cache are called, as in cachetools and aiocache",
    "locked": "the name of the standard library: asyncio.Lock.locked()",
    "remaining": "what is left, as in the RateLimit-Remaining header",
}
"""Function names that are participles or gerunds on purpose, with the reason."""

SHARED_MODULE_NAMES = {
    "app": "a web application",
    "base": "the interface that the other modules of the package implement",
    "batch": "batch jobs: their routes, and their command",
    "block": "a guarded block of code: what ``with`` and decorators use",
    "bound_limit": "a limit tied to a store",
    "cache": "the cache of results: the class, and its command",
    "clock": "clocks; the one of ``testing`` is moved by hand",
    "commands": "the commands of a database, each a ``Command``",
    "config": "validated options; the command line's prints them",
    "connection": "a connection to a state server; the one of ``simulation`` is simulated",
    "core": "what the public class does, once, as flows",
    "counters": "counts of this process that are not published yet",
    "coverage": "which parts of a request a result covers",
    "dashboard": "the dashboard: its objects, and its routes",
    "degradation": "limits that errors lower",
    "demo": "the demo: its command, and its routes",
    "errors": "exceptions, and their translation",
    "factory": "creates objects from options",
    "fast_path": "the direct path without a flow",
    "faults": "faults to inject, into a real connection or a simulated fleet",
    "flows": "what a public class can do, each method once",
    "health": "the result of health checks",
    "item_sink": "a sink that stores the rows of an item together with its confirmation",
    "metrics": "counters and histograms",
    "migrations": "migrations of database tables",
    "models": "values without behaviour",
    "operation": "operations that a store applies",
    "poller": "reads something again and again",
    "postgres": "PostgreSQL",
    "progress": "progress for people who wait",
    "progress_log": "which items of a run are done",
    "reader": "reads what others have written",
    "registry": "objects by name",
    "removal": "removes stored records",
    "report": "what happened to a call or a run, for the program",
    "runner": "runs jobs to their end",
    "search": "the search over portals: how it answers, and its routes",
    "server": "a server; the one of ``simulation`` is simulated",
    "sheets": "the sheets of batch jobs: how they are filled, and their routes",
    "sql": "SQL statements",
    "sqlite": "SQLite",
    "stats": "counts for the program",
    "store": "a state engine; the one of ``simulation`` is simulated",
    "tokens": "API tokens of the service",
    "upstream": "an upstream; the one of ``simulation`` is simulated",
    "worker": "a worker process; the one of ``simulation`` is simulated",
}
"""Module names that occur in more than one package, with their one meaning in all of them."""

IRREGULAR = {
    *("asked", "begun", "born", "bound", "brought", "built", "cut", "done"),
    *("drawn", "driven", "fallen", "fell", "forgotten", "found", "given", "gone"),
    *("grown", "heard", "held", "hidden", "kept", "known", "laid", "left"),
    *("lent", "lost", "made", "meant", "met", "paid", "said", "seen"),
    *("sent", "shown", "slept", "spent", "stood", "struck", "taken", "taught"),
    *("thrown", "told", "understood", "woken", "worn", "written", "wrote"),
}
NOT_PARTICIPLES = {
    *("bed", "deed", "embed", "feed", "need", "red", "ring", "seed", "setting", "speed", "string"),
    *("proceed", "succeed", "thing"),
}

DIALECT = re.compile(
    r"\b(?:whoever|anew|told|teller|heard|at the most|at the least|for ever|in the place of|comes? to be"
    r"|came to be|nobody|somebody|thrown away)\b",
    re.IGNORECASE,
)
DIALECT_USES_MAX = 60
"""At most this many uses of these words are allowed, where their plain meaning is right."""

TEST_NAME_CHARS_MAX = 90

PROSE = ("src", "docs", "tests", "benchmarks", "mutation", "release", "website")
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Makefile")
NOT_PROSE = {".png", ".svg", ".txt", ".pyc", ".so", ".db"}


CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
FLOW = re.compile(r"Flow\[|(?:Generator|Iterator)\[\s*\w*Effect\b")
FUNCTION = re.compile(r"^ *(?:async )?def (\w+)", re.MULTILINE)


@cache
def sources() -> dict[Path, str]:
    """Return the texts of all modules."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def functions_in(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a module. Parsing all modules would take seconds: search their texts first."""
    nodes = ast.walk(ast.parse(text))
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def relative(path: Path) -> str:
    """Return a path relative to the repository, for messages."""
    return str(path.relative_to(ROOT))


def is_participle(word: str) -> bool:
    """Return whether a word has the form of a gerund or a participle."""
    if word in NOT_PARTICIPLES:
        return False
    return word in IRREGULAR or word.endswith(("ing", "ed"))


def is_bare_participle(function_name: str) -> bool:
    """Return whether the name of a function is one word, which is a gerund or a participle."""
    word = function_name.strip("_")
    return "_" not in word and word not in ESTABLISHED_FUNCTIONS and is_participle(word)


def module_names() -> dict[str, str]:
    """Return the names of all modules and packages, by path."""
    names = {path: path.parent.name if path.stem == "__init__" else path.stem for path in sources()}
    return {relative(path): name for path, name in names.items()}


def names_of_tests() -> list[tuple[Path, str]]:
    """Return the names of all test functions, with their files."""
    return [
        (path, name)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in FUNCTION.findall(path.read_text(encoding="utf-8"))
        if name.startswith("test_")
    ]


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a property, whose name may be an adjective such as ``closed``."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any("property" in text or text == f"{function.name}.setter" for text in decorators)


def returns_flow(function: ast.FunctionDef) -> bool:
    """Return whether a function is annotated to return ``Flow[...]`` or ``Generator[Effect, ...]``."""
    annotation = ast.unparse(function.returns) if function.returns is not None else ""
    return re.match(rf"['\"]?(?:\w+\.)?(?:{FLOW.pattern})", annotation) is not None


def prose_files() -> list[Path]:
    """Return every text file that this project writes, except this one, which lists the words."""
    inside = [path for folder in PROSE for path in sorted((ROOT / folder).rglob("*"))]
    pages = [ROOT / name for name in PAGES]
    return [
        path
        for path in (*inside, *pages)
        if path.is_file()
        and path != Path(__file__).resolve()
        and path.suffix not in NOT_PROSE
        and "__pycache__" not in path.parts
    ]


def dialect_uses() -> list[str]:
    """Return each use of an avoided word, with its place. Names count too: ``_`` separates words."""
    uses = []
    for path in prose_files():
        text = path.read_text(encoding="utf-8")
        if not DIALECT.search(text.replace("_", " ")):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            uses += [
                f"{relative(path)}:{number}: {word}: {line.strip()[:100]}"
                for word in DIALECT.findall(line.replace("_", " "))
            ]
    return uses


def test_class_names__whole_package__are_unique() -> None:
    places = defaultdict(list)
    for path, text in sources().items():
        for name in CLASS.findall(text):
            places[name].append(relative(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_module_names__whole_package__are_neither_gerunds_nor_participles() -> None:
    names = {path: name for path, name in module_names().items() if name not in ESTABLISHED}
    last_words = {path: name.rpartition("_")[2] for path, name in names.items()}
    assert [
        path for path, word in last_words.items() if is_participle(word) and word not in ESTABLISHED
    ] == []


def test_function_names__whole_package__are_neither_gerunds_nor_participles() -> None:
    functions = [
        f"{relative(path)}:{function.lineno}: {function.name}"
        for path, text in sources().items()
        if any(map(is_bare_participle, FUNCTION.findall(text)))
        for function in functions_in(text)
        if is_bare_participle(function.name) and not is_property(function)
    ]
    assert functions == []


def test_module_names__in_two_packages__mean_the_same() -> None:
    places = defaultdict(set)
    for path in sources():
        if not path.stem.startswith("__"):
            places[path.stem].add(path.parent)
    assert {name for name, packages in places.items() if len(packages) > 1} == set(SHARED_MODULE_NAMES)


def test_established_names__allow_list__has_no_entry_that_is_not_used() -> None:
    assert sorted(set(ESTABLISHED) - set(module_names().values())) == []


def test_flows__functions_that_return_one__have_names_that_end_in_flow() -> None:
    functions = [
        f"{relative(path)}:{function.lineno}: {function.name}"
        for path, text in sources().items()
        if FLOW.search(text)
        for function in functions_in(text)
        if isinstance(function, ast.FunctionDef)
        and returns_flow(function)
        and not function.name.endswith("_flow")
    ]
    assert functions == []


def test_test_names__whole_suite__have_at_most_90_characters() -> None:
    long = [f"{relative(path)}: {name}" for path, name in names_of_tests() if len(name) > TEST_NAME_CHARS_MAX]
    assert long == []


def test_prose__avoided_words__are_rare() -> None:
    uses = dialect_uses()
    assert len(uses) <= DIALECT_USES_MAX, "\n".join([f"{len(uses)} uses", *uses])
