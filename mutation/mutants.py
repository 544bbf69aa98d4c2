"""Mutants: a module with one change, and how to apply it to a running process."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType

from mutation.targets import SOURCE

_COMMENT = re.compile(r"  # .*$")

CodeKey = tuple[str, int]
"""The qualified name of a function, and its first line."""


@dataclass(frozen=True)
class Place:
    """Where a mutant differs: the function that contains it, and the lines of its statement."""

    function: str
    first_line: int
    lines: range


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    module: str
    place: Place
    original: str
    mutated: str

    @cached_property
    def removed_and_added(self) -> tuple[str, str]:
        """Return the lines that the mutant removes and those that it adds, without indent and comments."""
        lines = list(difflib.unified_diff(self.original.splitlines(), self.mutated.splitlines(), n=0))[2:]
        removed, added = (
            [_COMMENT.sub("", line[1:]).strip() for line in lines if line[0] == sign] for sign in "-+"
        )
        return "\n".join(removed), "\n".join(added)

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        name = f"src/comporta/{self.module}"
        lines = difflib.unified_diff(
            self.original.splitlines(), self.mutated.splitlines(), name, name, lineterm="", n=2
        )
        return "\n".join(lines)

    @property
    def code(self) -> CodeType | None:
        """The compiled function, or None if the change is not valid Python or lies outside its code."""
        try:
            mutated = functions_of(compile(self.mutated, path_of(self.module), "exec", dont_inherit=True))
        except SyntaxError:
            return None
        return mutated.get((self.place.function, self.place.first_line))


def path_of(module: str) -> str:
    """Return the path of a module's file."""
    return str(SOURCE / "comporta" / module)


def functions_of(code: CodeType) -> dict[CodeKey, CodeType]:
    """Return the functions of a compiled module and of its classes, but not those inside functions."""
    found: dict[CodeKey, CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # CO_NEWLOCALS: a function, not a class
                found[constant.co_qualname, constant.co_firstlineno] = constant
            else:
                found |= functions_of(constant)
    return found


def replace_code(functions: list[FunctionType], code: CodeType) -> bool:
    """Replace the code of functions; false if it does not fit: it uses other variables of its class."""
    try:
        for function in functions:
            function.__code__ = code
    except ValueError:
        return False
    return True
