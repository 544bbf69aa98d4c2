"""Builds JSON schemas. Every object may have further fields, so that clients accept later versions. Pure."""

from __future__ import annotations

from typing import Any, Final

from comporta.service.batch.models import COMPLETED, FAILED, PENDING, RUNNING

Schema = dict[str, Any]


def reference(name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: Schema, optional: Schema | None = None) -> Schema:
    """Return the schema of an object with these fields."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": True,
    }


def object_of(values: Schema) -> Schema:
    """Return the schema of an object whose field names are data, such as names of sources."""
    return {"type": "object", "additionalProperties": values}


def array(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def nullable(schema: Schema) -> Schema:
    """Return a schema that also allows ``null``."""
    return {"anyOf": [schema, {"type": "null"}]}


def enum(*values: str | None) -> Schema:
    """Return the schema of one of these values."""
    return {"enum": list(values)}


def json_text(schema: Schema) -> Schema:
    """Return the schema of a text that is the JSON form of a value."""
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def event(kind: str, data: Schema) -> Schema:
    """Return the schema of a server-sent event whose data is JSON."""
    fields = {"event": enum(kind), "data": json_text(data)}
    return record(fields, {"id": {"type": "string"}, "retry": {"type": "integer"}})


STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
STRINGS: Final[Schema] = array(STRING)
TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
NUMBER_OR_NULL: Final[Schema] = {"type": ["number", "null"]}
INTEGER_OR_NULL: Final[Schema] = {"type": ["integer", "null"]}
DATE_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
DATE_TIME_OR_NULL: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}

STATUS: Final = enum("ok", "warn", "fail")
FORCED: Final = enum("open", "closed", None)
JOB_STATUS: Final = enum(RUNNING, COMPLETED)
BACKFILL: Final = enum(PENDING, COMPLETED, FAILED)
FALLBACK: Final = nullable(record({"since": NUMBER, "reason": STRING}, {"workers": INTEGER}))
COVERAGE: Final[Schema] = {"succeeded_ufs": STRINGS, "failed_ufs": STRINGS, "total_requested": INTEGER}
COUNTS: Final[Schema] = dict.fromkeys(("total", "succeeded", "failed", "pending"), INTEGER)
"""Schemas that several components share."""
