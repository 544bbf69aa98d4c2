"""Builds sdist and wheel into a folder and tries them: ``python -m release dist``.

Other arguments name the extras to try; by default all of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from release.contents import ROOT, sdist_problems, wheel_problems
from release.smoke import PROGRAMS

WORKFLOW = ".github/workflows/ci.yml"


def main(output: Path, extras: list[str]) -> None:
    """Build, check, write the bill of materials and try each extra; the first failure ends the program."""
    run("check_jsonschema", "--builtin-schema", "vendor.github-workflows", WORKFLOW)
    shutil.rmtree(output, ignore_errors=True)
    run("hatchling", "build", "-d", str(output))
    [wheel], [sdist] = output.glob("*.whl"), output.glob("*.tar.gz")
    run("twine", "check", "--strict", str(wheel), str(sdist))
    problems = [*wheel_problems(wheel), *sdist_problems(sdist)]
    if problems:
        sys.exit("\n".join(problems))
    report(f"{wheel.name} and {sdist.name} are complete.")
    with tempfile.TemporaryDirectory() as folder:
        build_from_sdist(sdist, wheel, Path(folder))
        for extra in extras or PROGRAMS:
            try_extra(wheel, extra, Path(folder))
        if not extras:
            write_bill_of_materials(Path(folder) / "all", output)


def build_from_sdist(sdist: Path, wheel: Path, folder: Path) -> None:
    """Build a wheel from the source archive alone, and check that it is the same as that of the tree."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    run("hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=source)
    if (folder / wheel.name).read_bytes() != wheel.read_bytes():
        sys.exit(f"{sdist.name} builds another wheel than the tree does")
    shutil.rmtree(source)
    report(f"{sdist.name} builds the same wheel.")


def run(module: str, *arguments: str, cwd: Path = ROOT) -> None:
    """Run a tool of the environment; its output is shown only if it fails."""
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        sys.exit(f"{module} failed:\n{ran.stdout}{ran.stderr}")


def try_extra(wheel: Path, extra: str, folder: Path) -> None:
    """Install the wheel with one extra into an empty environment, and run its program there."""
    environment = folder / (extra or "core")
    constraints = folder / "constraints.txt"
    constraints.write_text(locked_versions())
    venv = str(ROOT / "scripts" / "venv")
    wanted = f"comporta[{extra}] @ {wheel.resolve().as_uri()}" if extra else str(wheel.resolve())
    subprocess.run([venv, "new", str(environment)], check=True)
    install = [venv, "install", str(environment), "--constraint", str(constraints), wanted]
    subprocess.run(install, check=True)
    program = [str(environment / "bin" / "python"), "-I", "-W", "error", "-c", PROGRAMS[extra]]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COMPORTA_")}
    ran = subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"comporta[{extra}] does not work:\n{ran.stderr}")
    report(f"comporta[{extra}] works." if extra else "comporta without extras works.")
    if extra != "all":
        shutil.rmtree(environment)


def locked_versions() -> str:
    """Return the versions of the lock file as constraints, without hashes: the wheel itself has none."""
    lock = (ROOT / "requirements" / "dev.txt").read_text("utf-8")
    return "\n".join(re.findall(r"^\S+==[^\\\n]+", lock, re.MULTILINE)) + "\n"


def write_bill_of_materials(environment: Path, output: Path) -> None:
    """Write which packages the extras install, in CycloneDX format."""
    path = output / "comporta.cdx.json"
    project = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    python = str(environment / "bin" / "python")
    run("cyclonedx_py", "environment", *project, "--output-file", str(path), python)
    report(f"{path.name} lists every package of comporta[all].")


def report(line: str) -> None:
    """Print one line of progress."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
