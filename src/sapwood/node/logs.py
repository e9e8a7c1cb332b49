"""Log lines on stderr: for people, coloured on a terminal, or one JSON object each."""

import json
import logging
import os
import sys
import time

COLOURS = {
    logging.DEBUG: "\x1b[2m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
PLAIN = "\x1b[0m"


class ConsoleFormatter(logging.Formatter):
    def __init__(self, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._coloured:
            level = f"{COLOURS.get(record.levelno, '')}{level}{PLAIN}"
        text = f"{clock}.{int(record.msecs):03d} {level} {record.name}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        handler.setFormatter(ConsoleFormatter(coloured))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
