"""Draw the pictures: ``python -m benchmarks.pictures [--check] [--slow] [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.pictures.drawing import Picture

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
QUICK = ("strategies", "throttle", "breaker", "retries", "in-flight")
"""Scenes on simulated time: moments each, and the same bytes each time."""


def main() -> int:
    """Draw what was asked for, or say which pictures are not what their scenes show."""
    asked = _arguments()
    stale = []
    for name in asked.names or QUICK:
        path, svg = FOLDER / f"{name}.svg", drawn(name)
        if not asked.check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(svg, "utf-8")
            print(f"{path.name}: {len(svg) / 1000:.0f} kB")
        elif not path.exists() or path.read_text("utf-8") != svg:
            stale.append(path.name)
    if stale:
        print(f"not what the code shows: {', '.join(stale)}; run make pictures", file=sys.stderr)
    return int(bool(stale))


def drawn(name: str) -> str:
    """Play a scene and return it as SVG."""
    picture: Callable[[], Picture] = import_module(f"benchmarks.pictures.scenes.{name.replace('-', '_')}").picture
    return picture().svg


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description="Draw the guides' pictures.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(QUICK)}")
    parser.add_argument("--check", action="store_true", help="draw nothing, compare with what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
