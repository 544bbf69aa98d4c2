"""The import time of comporta, and the modules that it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import comporta
from benchmarks.measure import Effort
from benchmarks.report import Goal, Section, Table

_OURS = "from comporta import TokenBucketLimiter"
_IMPORTS = (
    *("import comporta", _OURS, "from comporta import Upstream"),
    *("import limits", "import throttled", "import pyrate_limiter", "import aiolimiter"),
)
_MS_MAX = 60
_PROGRAM = """
import json, os, sys, time
sys.path[:0] = {paths!r}
before = set(sys.modules)
start = time.perf_counter()
{statement}
took = time.perf_counter() - start
new = set(sys.modules) - before
tops = {{name.partition(".")[0] for name in new}} - set(sys.stdlib_module_names)
others = sorted(name for name in tops if name != {statement!r}.split()[1] and not name.startswith("__"))
print(json.dumps([1000 * took, len(new), others]))
"""


def run(effort: Effort) -> Section:
    """Import each library in new interpreters, in turns."""
    found: dict[str, list[tuple[float, int, list[str]]]] = {statement: [] for statement in _IMPORTS}
    with TemporaryDirectory() as compiled:
        for statement in _IMPORTS:
            _measure_import(statement, compiled)
        for _ in range(effort.repeats):
            for statement in _IMPORTS:
                found[statement].append(_measure_import(statement, compiled))
    took = {statement: median(ms for ms, _, _ in runs) for statement, runs in found.items()}
    rows = []
    for statement, runs in found.items():
        _, modules, others = runs[0]
        fastest = min(ms for ms, _, _ in runs)
        packages = ", ".join(others) or "none"
        rows.append(
            [f"`{statement}`", f"{took[statement]:.0f} ms", f"{fastest:.0f} ms", str(modules), packages]
        )
    ours, others = took[_OURS], found[_OURS][0][2]
    return Section(
        "Import",
        f"{effort.repeats} new interpreters each, started without `site`, so that nothing is imported for "
        "other reasons; the bytecode is cached.",
        [Table("Import", ["", "median", "fastest", "modules", "other packages"], rows)],
        [
            Goal(f"a limiter: under {_MS_MAX} ms", f"{ours:.0f} ms", ours < _MS_MAX),
            Goal("a limiter: without third-party modules", ", ".join(others) or "none", not others),
        ],
    )


def _measure_import(statement: str, compiled: str) -> tuple[float, int, list[str]]:
    """Return the import time, the number of modules, and the other packages that were imported.

    ``compiled`` is the directory of the bytecode, which the first import writes, as an installation would.
    """
    source = str(Path(comporta.__file__).parent.parent)
    program = _PROGRAM.format(paths=[source, sysconfig.get_path("purelib")], statement=statement)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        check=True,
        text=True,
        env={**environment, "PYTHONPYCACHEPREFIX": compiled},
    )
    took, modules, others = json.loads(done.stdout)
    return took, modules, others
