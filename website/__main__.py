"""Builds the documentation site into a folder: ``python -m website build/site``.

With ``--check`` it reads every page and resolves every link and name, but writes no HTML, which takes a third
of the time.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from website.source import ROOT, write_source


def main(output: Path, *, only_check: bool = False) -> int:
    """Build the site. Return 0, or another number if Sphinx reports a warning or an error."""
    builder = "dummy" if only_check else "html"
    source = output.with_name(f"{output.name}-source")
    for folder in (source, output):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    write_source(source)
    strict = ["--fail-on-warning", "--quiet", "--fresh-env"]
    configuration = ["--conf-dir", str(ROOT / "website"), "--doctree-dir", str(source / ".doctrees")]
    status: int = build_main(["--builder", builder, *strict, *configuration, str(source), str(output)])
    if status == 0 and not only_check:
        sys.stdout.write(f"Open {output / 'index.html'}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), only_check="--check" in sys.argv))
