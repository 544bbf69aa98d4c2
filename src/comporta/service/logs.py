"""The log of the service: one line for each record, as text or JSON, with worker and request.

::

    2026-11-18T09:30:00.123Z WARNING web-1:412 7f3a9c21-5 comporta.service: the database is unreachable

A middleware sets the id of the current request; everything that is logged while it is handled has that id.
"""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from comporta.breaker.admission import worker_name

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig

ACCESS_LOGGER: Final = "comporta.access"
NO_REQUEST: Final = "-"

current_request_id: ContextVar[str] = ContextVar("comporta_request_id", default=NO_REQUEST)

_EXTRAS = ("kind", "source")
"""Fields of events that a JSON record has of its own."""


class TextFormatter(logging.Formatter):
    """A line of text; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = super().format(record)
        where = f"{worker_name()} {current_request_id.get()}"
        return f"{_timestamp(record)} {record.levelname} {where} {record.name}: {message}"


class JsonFormatter(logging.Formatter):
    """A JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        request_id = current_request_id.get()
        fields: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "worker": worker_name(),
            "request_id": None if request_id == NO_REQUEST else request_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: getattr(record, name) for name in _EXTRAS if hasattr(record, name)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def log_config(config: ServiceConfig) -> dict[str, Any]:
    """Return the configuration of ``logging``: everything goes to standard error."""
    formatter = JsonFormatter if config.log_format == "json" else TextFormatter
    level = config.log_level.upper()
    access_level = "INFO" if config.access_log else "CRITICAL"
    own = {"handlers": ["default"], "level": level, "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"default": {"()": formatter}},
        "handlers": {
            "default": {
                "formatter": "default",
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
            }
        },
        "loggers": {
            "comporta": own,
            "uvicorn": {**own, "level": "WARNING" if level == "INFO" else level},
            ACCESS_LOGGER: {"level": access_level},
        },
    }


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"
