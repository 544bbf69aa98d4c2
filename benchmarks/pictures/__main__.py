"""Draw the pictures: ``python -m benchmarks.pictures [--check] [NAME ...]``, in a repository."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from comporta.cli.sim_charts import Picture

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUICK = (
    *("strategies", "throttle", "breaker", "retries", "in-flight", "degradation", "pause", "lease", "cache"),
    *("writer", "inbound", "groups", "channel", "breaker-rules"),
)
"""Scenes on simulated time: fast, and the same bytes every time."""

SLOW = ("outage",)
"""Scenes with real servers, drawn only by name: each takes a minute and never gives the same bytes."""


def main() -> int:
    """Draw the selected pictures, or with ``--check`` report those that differ from their scenes."""
    options = _arguments()
    stale = []
    for name in options.names or QUICK:
        path, svg = path_of(name), draw(name)
        if not options.check:
            path.write_text(svg, "utf-8")
            print(f"{path.relative_to(DOCS.parent)}: {len(svg) / 1000:.0f} kB", flush=True)
        elif not path.exists() or path.read_text("utf-8") != svg:
            stale.append(path.name)
    if stale:
        print(f"pictures differ from their scenes: {', '.join(stale)}; run make pictures", file=sys.stderr)
    return int(bool(stale))


def path_of(name: str) -> Path:
    """Return the path of a picture."""
    return DOCS / "pictures" / f"{name}.svg"


def draw(name: str) -> str:
    """Run a scene and return it as SVG."""
    scene = import_module(f"benchmarks.pictures.scenes.{name.replace('-', '_')}")
    picture: Callable[[], Picture] = scene.picture
    return picture().svg


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pictures", description="Draw the pictures of the guides."
    )
    names = f"Draw these pictures: {', '.join(QUICK)} (default: all of these), {', '.join(SLOW)}."
    parser.add_argument("names", nargs="*", choices=[[], *QUICK, *SLOW], metavar="NAME", help=names)
    parser.add_argument(
        "--check", action="store_true", help="Draw nothing, and compare with the existing files."
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
