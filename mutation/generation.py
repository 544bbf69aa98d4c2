"""Makes every mutant of a module, with the operators of mutmut.

A mutant differs from the module in one place inside a function. Code outside functions, default values,
annotations and decorators are not mutated: that code runs once, at import. Assertions, which are there for
the type checker, and strings with spaces, which are prose, are not mutated either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
from libcst.metadata import (
    CodeRange,
    MetadataWrapper,
    PositionProvider,
    WhitespaceInclusivePositionProvider,
)
from mutmut.mutation.mutators import mutation_operators

from mutation.mutants import Mutant, Place, functions_of, path_of

_UNTOUCHED_CALLS = {"isinstance", "len", "cast"}
"""Calls whose mutants only raise TypeError, or change nothing."""


def mutants_of(module: str) -> Iterator[Mutant]:
    """Yield every mutant of a module that compiles to something else."""
    source = Path(path_of(module)).read_text("utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    visitor = _Visitor(_statement_lines(source))
    wrapper.visit(visitor)
    compiled = functions_of(compile(source, path_of(module), "exec", dont_inherit=True))
    seen = set()
    lines = source.splitlines(keepends=True)
    spans = wrapper.resolve(WhitespaceInclusivePositionProvider)
    for place, node, mutated in visitor.changes:
        mutant = Mutant(module, place, source, _changed(wrapper.module, lines, spans[node], node, mutated))
        code = mutant.code
        key = (place.function, place.first_line)
        if code is None or code == compiled.get(key) or mutant.mutated in seen:
            continue
        seen.add(mutant.mutated)
        yield mutant


def _changed(
    module: cst.Module, lines: list[str], span: CodeRange, node: cst.CSTNode, mutated: cst.CSTNode
) -> str:
    """Return the source of a module after one change."""
    number = span.start.line - 1
    line, start, end = lines[number], span.start.column, span.end.column
    if span.end.line == span.start.line and line[start:end] == module.code_for_node(node):
        changed = line[:start] + module.code_for_node(mutated) + line[end:]
        return "".join((*lines[:number], changed, *lines[number + 1 :]))
    # A node of several lines needs the indentation of the code around it. This takes much longer.
    return str(cst.ensure_type(module.deep_replace(node, mutated), cst.Module).code)


def _statement_lines(source: str) -> dict[int, range]:
    """Return, for each line, the lines of its innermost statement; for a block, the lines of its header."""
    lines: dict[int, range] = {}
    for node in ast.walk(ast.parse(source)):  # outer statements first
        if isinstance(node, ast.stmt):
            end = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if isinstance(body, list) and body:
                end = max(node.lineno, body[0].lineno - 1)
            lines |= dict.fromkeys(range(node.lineno, end + 1), range(node.lineno, end + 1))
    return lines


class _Visitor(cst.CSTVisitor):  # type: ignore[misc]  # not known without mutmut
    """Collects what the operators make of each node that is inside a function."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, statement_lines: dict[int, range]) -> None:
        super().__init__()
        self.changes: list[tuple[Place, cst.CSTNode, cst.CSTNode]] = []
        self._statement_lines = statement_lines
        self._names: list[str] = []
        self._function: tuple[str, int] | None = None
        self._outermost: cst.FunctionDef | None = None

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_untouched(node):
            return False
        if isinstance(node, cst.ClassDef | cst.FunctionDef):
            self._enter(node)
        elif self._function is not None:
            self._mutate(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.ClassDef | cst.FunctionDef):
            self._names.pop()
            if original_node is self._outermost:
                self._outermost = self._function = None

    def _enter(self, node: cst.ClassDef | cst.FunctionDef) -> None:
        self._names.append(node.name.value)
        if isinstance(node, cst.FunctionDef) and self._function is None:
            first = node.decorators[0] if node.decorators else node
            self._function = (".".join(self._names), self._line(first))
            self._outermost = node

    def _mutate(self, node: cst.CSTNode) -> None:
        assert self._function is not None  # noqa: S101 - the caller ensured it
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                line = self._line(node)
                lines = self._statement_lines.get(line, range(line, line + 1))
                place = Place(*self._function, lines)
                self.changes += [(place, node, mutated) for mutated in operator(node)]

    def _line(self, node: cst.CSTNode) -> int:
        position = self.get_metadata(PositionProvider, node, None)
        return position.start.line if position else 0


def _is_untouched(node: cst.CSTNode) -> bool:
    match node:
        case (
            cst.Annotation()
            | cst.Decorator()
            | cst.Assert()
            | cst.Parameters()
            | cst.Import()
            | cst.ImportFrom()
        ):
            return True
        case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
            return True
        case cst.SimpleString(value=text):
            return " " in text
        case cst.Call(func=cst.Name(value=name)):
            return name in _UNTOUCHED_CALLS
    return False
