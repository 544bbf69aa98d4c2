"""Draw the pictures: ``python -m benchmarks.pictures [--check] [NAME ...]``, in a repository."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.pictures.drawing import Picture

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUICK = (
    *("strategies", "throttle", "breaker", "retries", "in-flight", "degradation", "pause", "lease", "cache"),
    *("writer", "inbound", "groups", "channel"),
)
"""Scenes on simulated time: moments each, and the same bytes each time."""

SLOW = ("outage",)
"""Scenes with real servers, drawn only when asked for by name: a minute, never quite the same."""


def main() -> int:
    """Draw what was asked for, or say which pictures are not what their scenes show."""
    asked = _arguments()
    stale = []
    for name in asked.names or QUICK:
        path, svg = path_of(name), drawn(name)
        if not asked.check:
            path.write_text(svg, "utf-8")
            print(f"{path.relative_to(DOCS.parent)}: {len(svg) / 1000:.0f} kB", flush=True)
        elif not path.exists() or path.read_text("utf-8") != svg:
            stale.append(path.name)
    if stale:
        print(f"not what the code shows: {', '.join(stale)}; run make pictures", file=sys.stderr)
    return int(bool(stale))


def path_of(name: str) -> Path:
    """Return where a picture is kept."""
    return DOCS / f"{name}.svg" if name in SLOW else DOCS / "pictures" / f"{name}.svg"


def drawn(name: str) -> str:
    """Play a scene and return it as SVG."""
    scene = import_module(f"benchmarks.pictures.scenes.{name.replace('-', '_')}")
    picture: Callable[[], Picture] = scene.picture
    return picture().svg


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pictures", description="Draw the pictures of the guides."
    )
    names = f"{', '.join(QUICK)} (all of these, if none is named), {', '.join(SLOW)}"
    parser.add_argument("names", nargs="*", choices=[[], *QUICK, *SLOW], metavar="NAME", help=names)
    parser.add_argument("--check", action="store_true", help="draw nothing, compare with what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
