"""Compilation of the kernels in a process of its own, while the broker serves with interpreted ones.

The process fills the cache; after each module the broker takes over what is there. It ends with the broker, however
that ends: its standard input is a pipe that only the broker holds open.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from ...protocol.storage.arrays import jit
from ...protocol.storage.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from .. import kernels

log = logging.getLogger(__name__)

NICENESS = 5
"""Niceness of the process beside a broker. Were it higher, interpreted kernels that keep a lone processor busy would
hardly let it work, and it is what makes them fast."""
OUTPUT_LINES_MAX = 10
"""Number of lines of a failed compilation that the log shows."""
RECORDS_MAX = 1_000
"""Maximum number of records that a broker recovers with interpreted kernels, which take a millisecond for each."""

_SAID = "kernels: "
PROGRAM = f"""
import contextlib, os, signal, sys, threading

def end_with_parent():
    os.read(0, 1)
    os._exit(1)

# A service manager tells all processes to stop: this one waits for its parent's end.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=end_with_parent, daemon=True).start()
with contextlib.suppress(OSError):  # a service manager may forbid it
    os.nice(int(sys.argv[1]))
from flintmq.broker import kernels
for name, seconds in kernels.compile_all():
    print({_SAID!r}, name, seconds, flush=True)
"""


class Compilation:
    """A process that compiles the kernels of all modules, or loads them from the cache. ``niceness``: how much it gives
    way to others.

    Iterating yields (module, seconds) after each module, until the process ends; then ``exit_code`` is set.
    """

    def __init__(self, niceness: int = 0) -> None:
        self.exit_code: int | None = None
        self.output: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)
        """The last lines that the process wrote besides."""
        # Ctrl-C in a terminal is for this process alone, hence a process group.
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-P", "-c", PROGRAM, str(niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )

    def __iter__(self) -> Iterator[tuple[str, float]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_SAID):
                name, seconds = line.removeprefix(_SAID).split()
                yield name, float(seconds)
            else:
                self.output.append(line.rstrip())
        self.exit_code = self._process.wait()

    def stop(self) -> None:
        """End the process. Any thread."""
        self._process.kill()


class KernelCompiler:
    """Compiles the kernels beside a broker, and has it take them over."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._stopping = False
        self._compilation = Compilation(NICENESS)
        self._thread: threading.Thread | None = None

    def start(self, taken: Callable[[], object]) -> None:
        """Take the kernels over as they are compiled, in a thread, which calls ``taken`` each time that it has."""
        self._thread = threading.Thread(target=self._follow, args=(taken,), name="flintmq-kernels", daemon=True)
        self._thread.start()

    def wait(self, progress: Callable[[str, int, int], None]) -> bool:
        """Wait for the end of the compilation, and take the kernels over, in this thread; return whether it was all."""
        self._follow(lambda: None, progress)
        return not jit.interpreted_count()

    def stop(self) -> None:
        """End the compilation, if it still runs. What it has saved stays for the next start."""
        self._stopping = True
        self._compilation.stop()
        if self._thread is not None:
            self._thread.join()

    def _follow(
        self, taken: Callable[[], object], progress: Callable[[str, int, int], None] = lambda stage, done, total: None
    ) -> None:
        left = jit.interpreted_count()
        try:
            for done, (name, _) in enumerate(self._compilation, 1):
                progress(f"kernels ({name})", done, len(kernels.MODULES))
                if not self._stopping and jit.take_over() != left:
                    left = jit.interpreted_count()
                    taken()
        except Exception as error:  # noqa: BLE001 - such as a damaged file of the cache; it must not hurt the broker
            self._compilation.stop()
            self._give_up(f"{type(error).__name__}: {error}")
            return
        if self._stopping:
            return
        if self._compilation.exit_code or left:
            self._give_up(f"exit code {self._compilation.exit_code}")
        else:
            log.info("all kernels are compiled and in use, after %.1f s", time.monotonic() - self._began)

    def _give_up(self, reason: str) -> None:
        log.error(
            "the kernels could not be compiled (%s): %d run interpreted, which is slow. Run `flintmq-broker warm` as "
            "the same user, then start the broker again%s",
            reason,
            jit.interpreted_count(),
            "".join(f"; {line}" for line in self._compilation.output),
        )


def is_short(commitlog: Path) -> bool:
    """Return whether the log in this folder has so few records that interpreted kernels can recover it. Raises
    ``OSError``."""
    files = [*commitlog.iterdir()] if commitlog.is_dir() else []
    if len(files) != 1:
        return not files
    with files[0].open("rb") as file:
        at = 0
        for _ in range(RECORDS_MAX + 1):
            head = os.pread(file.fileno(), 8, at)
            size, magic = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big", signed=True)
            if size < RECORD_BYTES_MIN or magic not in (MAGIC_V1, MAGIC_V2):
                return not any(head)  # otherwise it is damaged, and what is behind it must be searched
            at += size
    return False
