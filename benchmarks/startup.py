"""What ``import comporta`` costs a program that starts, and what it drags in."""

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

_MODULES = ("comporta", "limits", "throttled", "pyrate_limiter", "aiolimiter")
_MS_MAX = 60
_PROGRAM = """
import json, os, sys, time
sys.path[:0] = {paths!r}
before = set(sys.modules)
start = time.perf_counter()
import {module}
took = time.perf_counter() - start
new = set(sys.modules) - before
tops = {{name.partition(".")[0] for name in new}} - set(sys.stdlib_module_names)
others = sorted(name for name in tops if name != {module!r} and not name.startswith("__"))
print(json.dumps([1000 * took, len(new), others]))
"""


def run(effort: Effort) -> Section:
    """Import each library in fresh interpreters, in turns."""
    found: dict[str, list[tuple[float, int, list[str]]]] = {module: [] for module in _MODULES}
    with TemporaryDirectory() as compiled:
        for module in _MODULES:
            _imported(module, compiled)
        for _ in range(effort.repeats):
            for module in _MODULES:
                found[module].append(_imported(module, compiled))
    took = {module: median(ms for ms, _, _ in runs) for module, runs in found.items()}
    rows = []
    for module, runs in found.items():
        _, modules, others = runs[0]
        fastest = min(ms for ms, _, _ in runs)
        packages = ", ".join(others) or "none"
        rows.append([module, f"{took[module]:.0f} ms", f"{fastest:.0f} ms", str(modules), packages])
    ours, others = took["comporta"], found["comporta"][0][2]
    return Section(
        "Import",
        f"{effort.repeats} fresh interpreters each, started without `site`, so that nothing "
        "has been imported for other reasons; bytecode is there.",
        [Table("Import", ["", "median", "fastest", "modules", "packages of others"], rows)],
        [
            Goal(f"import comporta: under {_MS_MAX} ms", f"{ours:.0f} ms", ours < _MS_MAX),
            Goal("import comporta: without third-party modules", ", ".join(others) or "none", not others),
        ],
    )


def _imported(module: str, compiled: str) -> tuple[float, int, list[str]]:
    """Return how long it took, how many modules came with it, and which packages of others.

    ``compiled`` keeps the bytecode: the first import of a module writes it, as an installation does.
    """
    source = str(Path(comporta.__file__).parent.parent)
    program = _PROGRAM.format(paths=[source, sysconfig.get_path("purelib")], module=module)
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
