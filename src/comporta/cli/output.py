"""How commands print tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_WIDTH_IN_FILES_CHARS = 1000


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or on whole lines for whoever searches them."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_IN_FILES_CHARS)
    console.print(table)
