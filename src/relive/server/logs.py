"""Logs: one line an event, JSON or text, with secrets taken out of every line."""

import logging
import sys
from typing import Any, TextIO

import msgspec

from relive.storage.redaction import DEFAULT, Redactor

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_SAID_WHEN_A_CALL_BREAKS_OFF = "ASGI callable returned without completing response."


class LineFormatter(logging.Formatter):
    """Makes a line of a record; its extra fields become fields of the JSON object.

    Args:
        form: ``"json"`` or ``"text"``.
        redact: Takes secrets out.
    """

    def __init__(self, form: str, redact: Redactor = DEFAULT) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._json = form == "json"
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if not self._json:
            facts = " ".join(f"{name}={value}" for name, value in extra.items())
            return str(self._redact.text(f"{super().format(record)} {facts}".rstrip())[0])
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = msgspec.json.encode(line, enc_hook=str)
        return bytes(self._redact.json(text)[0]).decode(errors="replace")


class _BrokenOff(logging.Filter):
    """Leaves out what the server says when the gateway breaks a connection off on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.getMessage() != _SAID_WHEN_A_CALL_BREAKS_OFF


def set_up(level: str, form: str, stream: TextIO | None = None, redact: Redactor = DEFAULT) -> None:
    """Sends the logs of Relive and of its server to standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(form, redact))
    handler.addFilter(_BrokenOff())
    for name in ("relive", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(
            level.upper() if name == "relive" else max(logging.WARNING, logging.getLevelName(level.upper()))
        )
