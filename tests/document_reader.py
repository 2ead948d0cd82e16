"""A reader of a tutorial, who types everything that it says, in order, and compares what it shows.

* A block of Python after a line that ends with ``NAME.py`:`` is saved under that name. Blocks without a name are the
  cells of a notebook: they run in one process, in the order of the page.
* Commands (``sh``) run one after the other. If the text above one says "terminal of its own", it runs until the end of
  the page.
* A block of text is the output of what is above it; ``…`` is any text within a line, and a line of its own any lines.
  A command in a terminal of its own prints these lines in any order; "the terminal of `uvicorn`" names an earlier one.

Addresses are replaced by free ones, so that several readers may work at a time.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flintmq.testing.started_broker import broker_environment
from tests.conftest import STOP_TIMEOUT_S
from tests.group_tools import until
from tests.processes import free_port

COMMAND_TIMEOUT_S = 60.0
COLUMNS = 100
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SKIPPED = ("pip ", "git clone", "sudo ", "./scripts/")
"""Beginnings of commands that need a network, or that other tests cover."""
NEXT_CELL = "-- the next cell --\n"
"""The line that a notebook prints after each cell."""


class Block(NamedTuple):
    """A fenced block: the paragraph above it, its language and its text."""

    above: str
    language: str
    text: str


def read_blocks(document: Path) -> list[Block]:
    """Return the fenced blocks of a document, in order."""
    parts = FENCED.split(document.read_text(encoding="utf-8"))  # prose, language, text, prose, …
    return [
        Block(above.rstrip().rpartition("\n\n")[2], language, text)
        for above, language, text in zip(parts[::3], parts[1::3], parts[2::3], strict=False)
    ]


class Terminal:
    """A command that runs in a terminal of its own."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        self.command = command
        self._output: list[str] = []
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            shlex.split(command),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, args=(master,), daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Return what it has printed so far."""
        return "".join(self._output).replace("\r\n", "\n")

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        code = self._process.wait(COMMAND_TIMEOUT_S)
        self._reader.join(COMMAND_TIMEOUT_S)
        return code

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)

    def _read(self, master: int) -> None:
        with os.fdopen(master, "rb", buffering=0) as file:
            while True:
                try:
                    data = file.read(65536)
                except OSError:  # Linux reports the end of the last process of a terminal as an error
                    return
                if not data:
                    return
                self._output.append(data.decode())


class Reader:
    """One reader with a folder and terminals; ``close`` ends all commands."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._terminals: list[Terminal] = []
        broker, console, web = free_port(), free_port(), free_port()
        self._ports = {"10911": str(broker), "10980": str(console), "8000": str(web)}
        binaries = Path(sys.executable).parent
        self._environment = broker_environment(
            HOME=str(folder),
            PATH=f"{binaries}:{os.environ['PATH']}",
            PYTHONPATH="",
            FLINTMQ_BROKER=f"127.0.0.1:{broker}",
            FLINTMQ_METRICS__LISTEN="off",
            NO_COLOR="1",
            TERM="dumb",
        )

    def read(self, document: Path) -> None:
        """Do everything that the document says."""
        blocks = read_blocks(document)
        cells = [block for block in blocks if block.language == "python" and not _named(block)]
        shown: Iterator[str] = iter(())
        output: str | Terminal = ""
        for block in blocks:
            if block.language == "python" and (name := _named(block)):
                (self._folder / name).write_text(self._replaced(block.text), encoding="utf-8")
            elif block.language == "python":
                if block is cells[0]:
                    shown = iter(self._notebook(cells))
                output = next(shown)
            elif block.language == "sh":
                output = self._type(block)
            else:
                assert block.language == "text", block
                named = re.search(r"terminal of `(\w+)`", block.above)
                self._compare(block.text, self._terminal(named[1]) if named else output)

    def close(self) -> None:
        """End the commands that still run, the newest first."""
        for terminal in reversed(self._terminals):
            terminal.interrupt()

    def _type(self, block: Block) -> str | Terminal:
        commands = [line for line in block.text.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
        output = ""
        for command in commands:
            if command.startswith(SKIPPED):
                continue
            terminal = Terminal(self._command(command), self._folder, self._environment)
            self._terminals.append(terminal)
            if "terminal of its own" in " ".join(block.above.split()):
                assert len(commands) == 1
                self._wait_until_it_serves(terminal)
                return terminal
            code = terminal.wait()
            output += terminal.output
            assert code == 0, f"{command}\n{output}"
        return output

    def _terminal(self, command: str) -> Terminal:
        return next(each for each in self._terminals if each.command.startswith(command))

    def _command(self, command: str) -> str:
        command = self._replaced(command)
        if command.startswith("flintmq-broker serve"):
            return f"{command} --listen 127.0.0.1:{self._ports['10911']}"
        if command.startswith("flintmq dev"):
            return f"{command} --listen 127.0.0.1:{self._ports['10911']} --console 127.0.0.1:{self._ports['10980']}"
        if command.startswith("uvicorn"):
            return f"{command} --port {self._ports['8000']}"
        return command

    def _replaced(self, text: str) -> str:
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{self._ports[found[1]]}", text)

    def _wait_until_it_serves(self, terminal: Terminal) -> None:
        signs = {"flintmq-broker": "listening on", "flintmq": "console: http://", "uvicorn": "Uvicorn running on"}
        if sign := signs.get(terminal.command.split()[0]):
            until(lambda: sign in terminal.output, f"{terminal.command} says {sign!r}")

    def _notebook(self, cells: list[Block]) -> list[str]:
        """Run the cells in one process; return the output of each."""
        program = "".join(f"{cell.text}\nprint({NEXT_CELL.strip()!r})\n" for cell in cells)
        path = self._folder / "notebook.py"
        path.write_text(self._replaced(program), encoding="utf-8")
        terminal = Terminal(f"{sys.executable} -W error {path}", self._folder, self._environment)
        self._terminals.append(terminal)
        code = terminal.wait()
        assert code == 0, terminal.output
        return terminal.output.split(NEXT_CELL)[:-1]

    def _compare(self, wanted: str, output: str | Terminal) -> None:
        if isinstance(output, Terminal):
            try:
                until(lambda: all(_prints(line, output.output) for line in wanted.splitlines()))
            except AssertionError:
                raise AssertionError(f"wanted:\n{wanted}\nbut {output.command} printed:\n{output.output}") from None
        else:
            assert _same(wanted, output), f"wanted:\n{wanted}\nbut it printed:\n{output}"


def _named(block: Block) -> str | None:
    found = re.search(r"`([\w.]+\.py)`:\s*$", block.above)
    return found[1] if found else None


def _same(wanted: str, output: str) -> bool:
    """Return whether an output is that of the document."""
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else f"{_pattern(line)}\n" for line in wanted.splitlines())
    return re.fullmatch(pattern, output if output.endswith("\n") else f"{output}\n") is not None


def _prints(line: str, output: str) -> bool:
    return re.search(f"^{_pattern(line)}$", output, re.MULTILINE) is not None


def _pattern(line: str) -> str:
    return re.escape(line.rstrip()).replace("…", ".*?") + r"[ \t]*"
