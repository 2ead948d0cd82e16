"""Output of the broker: the banner of a start, the log, and state notifications to systemd."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ...protocol.display import escape, escape_json

if TYPE_CHECKING:
    from ..config import Settings
    from ..store import RecoveryReport


# ---- Output of the broker on standard output while it starts: progress, then the banner.

FIRST_PROGRESS_S = 1.0
"""A start that is faster than this prints nothing before the banner."""
PROGRESS_EVERY_S = 1.0

FLUSH_MEANING = {
    "sync": "sync: a message is acknowledged when it is on disk",
    "async": "async: a message is acknowledged when it is written; a crash of the machine can lose the newest",
}

COMPILING = (
    "first start: they are compiled for this machine beside the broker, for up to a minute; until then it is slow"
)


class Banner:
    """Writer of the start's output: with colour on a terminal, otherwise plain lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._started = time.monotonic()
        # As if a line had come before: the first one is due after FIRST_PROGRESS_S.
        self._said_at = self._started + FIRST_PROGRESS_S - PROGRESS_EVERY_S

    def progress(self, stage: str, done: int, total: int) -> None:
        """Print a line from time to time during a long start; ``total`` 0 if unknown. Callable from any thread."""
        now = time.monotonic()
        with self._lock:
            if now < self._said_at + PROGRESS_EVERY_S:
                return
            self._said_at = now
            share = f": {done * 100 // total} % ({done:,} of {total:,})" if total else f": {done:,}" if done else ""
            self._line(f"starting, {now - self._started:.0f} s: {stage}{share}")

    def compiling(self) -> None:
        """Say why a start takes long, before it is quiet for seconds."""
        self._line("first start: compiling the kernels for this machine, up to a minute; later starts load them")

    def ready(
        self,
        settings: Settings,
        version: str,
        pid: int,
        address: tuple[str, int],
        metrics_address: str,
        report: RecoveryReport,
        interpreted: int = 0,
    ) -> None:
        """Print the banner; its last line is the address of the open port. ``interpreted``: number of kernels that are
        not compiled yet."""
        from ..addresses import format_address  # imported late: it imports all commands, which ``--help`` does not need

        rows = [
            ("store", str(Path(settings.store.path).expanduser().absolute())),
            ("flush", FLUSH_MEANING[settings.flush.policy]),
            ("recovery", f"{report.seconds:.2f} s {_recovered(report)}"),
            *([("damage", report.damage)] if report.damage else []),
            *([("kernels", COMPILING)] if interpreted else []),
            ("metrics", f"http://{metrics_address}/metrics" if metrics_address else "off"),
        ]
        where = f"listening on {format_address(*address)}"
        with self._lock:
            if self._stream.isatty():
                self._rich(f"FlintMQ {version}", pid, rows, where, settings.server.insecure)
                return
            self._line(f"FlintMQ {version}, pid {pid}")
            for name, value in rows:
                self._line(f"{name}: {value}")
            self._line(where)

    def _rich(self, title: str, pid: int, rows: list[tuple[str, str]], where: str, insecure: bool) -> None:
        from rich.console import Console  # takes 60 ms, which a start without a terminal saves
        from rich.table import Table
        from rich.text import Text

        console = Console(file=self._stream, highlight=False)
        console.print(Text.assemble((title, "bold"), (f"  pid {pid}", "dim")))
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name, style="dim"), Text(value))
        console.print(table)
        note = ("  anyone who can reach it has full access", "yellow") if insecure else ("", "")
        console.print(Text.assemble((where, "bold green"), note), soft_wrap=True)
        self._stream.flush()

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def _recovered(report: RecoveryReport) -> str:
    """Return a description of the recovery that cannot be misread: "0 messages recovered" would sound like a loss."""
    if not report.messages_checked:
        found = "there were no messages to check"
    else:
        found = f"the newest {report.messages_checked:,} messages of the log were checked"
    if report.messages_recovered:
        found += f", {report.messages_recovered:,} of the log were put into queues and index"
    elif report.messages_checked and not report.truncated_bytes:
        found += ", none had to be recovered"
    if report.truncated_bytes:
        found += f", {report.truncated_bytes:,} torn bytes cut"
    if report.rebuilt:
        found += ", queues and index rebuilt"
    return f"after {'a clean' if report.clean else 'an unclean'} stop; {found}"


# ---- Logging of the broker: to standard error, as text or JSON, with control characters escaped.

TEXT_FORMAT = "%(asctime)s %(levelname)-8s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """One line per record, followed by the traceback if there is one.

    Control characters are escaped, so that text from clients cannot start a line of its own.
    """

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line and its traceback, escaped line by line."""
        lines = [escape(line) for line in super().format(record).split("\n")]
        return "\n".join(lines)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging has
        """Return the record's line, escaped: a line feed in its message must not look like the end of the line."""
        return escape(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(entry, ensure_ascii=False))


def set_up_logging(level: str, log_format: str) -> None:
    """Log messages of ``level`` and above, as ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("asyncio", "numba"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


# ---- State notifications to systemd (``Type=notify``): datagrams to the socket in NOTIFY_SOCKET.

log = logging.getLogger(__name__)

EVERY_S = 1.0
EXTENSION_S = 60
"""Additional time for the start that each progress report asks for."""


class ServiceManager:
    """The service manager, if there is one. ``address``: its socket, by default from the environment; "": none."""

    def __init__(self, address: str | None = None) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "") if address is None else address
        self._said_at = float("-inf")

    def starting(self, stage: str, done: int, total: int) -> None:
        """Report progress of the start, at most once per second. ``total``: 0 if unknown. Callable from any thread."""
        now = time.monotonic()
        if self._address and now >= self._said_at + EVERY_S:
            self._said_at = now
            share = f", {done * 100 // total} %" if total else ""
            self._say(f"STATUS=starting: {stage}{share}", f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")

    def ready(self, where: str) -> None:
        """Report that the port is open."""
        self._say("READY=1", f"STATUS=listening on {where}")

    def stopping(self) -> None:
        """Report that an orderly stop has begun."""
        self._say("STOPPING=1", "STATUS=stopping")

    def _say(self, *lines: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(address)
                sock.sendall("\n".join(lines).encode())
        except OSError as error:
            log.warning("cannot notify the service manager at NOTIFY_SOCKET=%s: %s", self._address, error)
