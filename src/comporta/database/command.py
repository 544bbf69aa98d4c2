"""A command: SQL statements, their parameters, and how to read the result, as one value.

A command knows neither a database nor a clock. ``execute`` and ``execute_async`` run one on a database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from comporta.database.base import Database, Parameters, Rows, Statement

T = TypeVar("T")


class Command(NamedTuple, Generic[T]):
    """Statements of one transaction; ``parse`` turns the rows that each of them returns into the result.

    ``writes`` is false if no statement changes anything. ``single_row`` is true if the command is one
    statement that reads a row by its key, which ``Database.try_read`` may do on an event loop.
    """

    statements: tuple[Statement, ...]
    parameters: Parameters
    parse: Callable[[list[Rows]], T]
    writes: bool = True
    single_row: bool = False


def execute(database: Database, command: Command[T]) -> T:
    """Run a command, and block until it is done."""
    statements, parameters = command.statements, command.parameters
    if command.writes:
        return command.parse(database.write(statements, parameters))
    return command.parse([database.read(statement, parameters) for statement in statements])


async def execute_async(database: Database, command: Command[T]) -> T:
    """Run a command without blocking the event loop."""
    statements, parameters = command.statements, command.parameters
    if command.writes:
        return command.parse(await database.write_async(statements, parameters))
    return command.parse([await database.read_async(statement, parameters) for statement in statements])
