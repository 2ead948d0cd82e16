"""Output of the broker on standard output while it starts: progress, then the banner."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from ..config import Settings
    from ..store import RecoveryReport

FIRST_PROGRESS_S = 1.0
"""A start that is faster than this prints nothing before the banner."""
PROGRESS_EVERY_S = 1.0

FLUSH_MEANING = {
    "sync": "sync: a message is acknowledged when it is on disk",
    "async": "async: a message is acknowledged when it is written; a crash of the machine can lose the newest",
}


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
        """Say why a first start takes long, before it is quiet for seconds."""
        self._line("first start: compiling the kernels for this machine, up to a minute; later starts load them")

    def ready(
        self,
        settings: Settings,
        version: str,
        pid: int,
        address: tuple[str, int],
        metrics_address: str,
        report: RecoveryReport,
    ) -> None:
        """Print the banner; its last line is the address of the open port."""
        from ..addresses import format_address  # imported late: it imports all commands, which ``--help`` does not need

        rows = [
            ("store", str(Path(settings.store.path).expanduser().absolute())),
            ("flush", FLUSH_MEANING[settings.flush.policy]),
            ("recovery", f"{report.seconds:.2f} s {_recovered(report)}"),
            *([("damage", report.damage)] if report.damage else []),
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
