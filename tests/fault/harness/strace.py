"""System calls that really fail or hang: strace returns the error in the kernel's place, or delays the call."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .mounts import NotHere

FAILING_CALLS = {
    "fdatasync": "fdatasync",
    "fallocate": "fallocate",
    "pwrite": "pwrite64",
    "pread": "?preadv2,?preadv,pread64",
    "rename": "?rename,?renameat,?renameat2",
}
"""Names of the store's operations in strace; a machine may lack those with a question mark."""


HANG = "hang"
"""In place of an error: the calls hang until the injection ends."""
HANG_MICROSECONDS = 600_000_000


class Injection:
    """strace on a process, its threads and its children. ``trace``: file with the calls and their results."""

    def __init__(self, tracer: subprocess.Popen[str], trace: Path) -> None:
        self._tracer = tracer
        self._trace = trace

    @property
    def injected(self) -> list[str]:
        """Return the calls that failed so far."""
        return [line for line in self._trace.read_text().splitlines() if line.endswith("(INJECTED)")]

    def end(self) -> None:
        """Stop failing calls."""
        if self._tracer.poll() is None:
            self._tracer.send_signal(signal.SIGINT)
        self._tracer.wait()


@contextmanager
def injection(
    pid: int,
    trace: Path,
    call: str,
    error: str,
    *,
    when: str = "1+",
    path: Path | None = None,
    beside_main: bool = False,
) -> Iterator[Injection]:
    """Let the calls of ``FAILING_CALLS[call]`` fail with ``error`` ("EIO") without any effect, or hang if it is HANG.

    ``when``: which of them, counted in each thread ("3": the third, "3+": the third and all that follow). ``path``:
    only calls on this file; for a rename, its old name. ``beside_main``: only calls of the threads that the process has
    now besides its main one. Raises ``NotHere``.
    """
    if shutil.which("strace") is None:
        raise NotHere("strace is not installed")
    calls = FAILING_CALLS[call]
    effect = f"delay_enter={HANG_MICROSECONDS}" if error == HANG else f"error={error}"
    threads = [each for each in os.listdir(f"/proc/{pid}/task") if each != str(pid)]
    command = [
        "strace",
        *([f"-p{each}" for each in threads] if beside_main else ["-f", f"-p{pid}"]),
        "-o",
        str(trace),
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:{effect}:when={when}",
    ]
    if path is not None:
        command += ["-P", str(path)]
    trace.touch()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        injected = Injection(tracer, trace)
        try:
            assert tracer.stderr is not None
            for _ in threads if beside_main else [pid]:  # with -f, one line tells of all threads
                output = tracer.stderr.readline()
                if "attached" not in output:
                    raise NotHere(f"`{' '.join(command)}` fails: {output.strip()}")
            yield injected
        finally:
            injected.end()


def check_strace(folder: Path) -> None:
    """Raise ``NotHere`` if this machine does not allow all of that."""
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        try:
            with injection(sleeping.pid, folder / "trace", "fdatasync", "EIO", path=folder / "nothing"):
                return
        finally:
            sleeping.kill()
