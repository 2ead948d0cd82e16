"""System calls that fail for real: strace answers them in the kernel's place."""

from __future__ import annotations

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
"""What the store does by the names that strace has for it; a machine need not have those with a question mark."""


class Injection:
    """strace on a process, its threads, and what it forks. ``trace``: where it writes the calls and their results."""

    def __init__(self, tracer: subprocess.Popen[str], trace: Path) -> None:
        self._tracer = tracer
        self._trace = trace

    @property
    def injected(self) -> list[str]:
        """The calls that failed so far."""
        return [line for line in self._trace.read_text().splitlines() if line.endswith("(INJECTED)")]

    def end(self) -> None:
        """No call fails any more."""
        if self._tracer.poll() is None:
            self._tracer.send_signal(signal.SIGINT)
        self._tracer.wait()


@contextmanager
def injection(
    pid: int, trace: Path, call: str, error: str, *, when: str = "1+", path: Path | None = None
) -> Iterator[Injection]:
    """The calls of ``FAILING_CALLS[call]`` fail with ``error`` ("EIO"), and nothing of them is done.

    ``when``: which of them, counted in each thread ("3": the third, "3+": that and all that follow). ``path``: only
    those on this file; of a rename, its old name. Raises ``NotHere``.
    """
    if shutil.which("strace") is None:
        raise NotHere("strace is not installed")
    calls = FAILING_CALLS[call]
    command = [
        "strace",
        "-f",
        "-p",
        str(pid),
        "-o",
        str(trace),
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:error={error}:when={when}",
    ]
    if path is not None:
        command += ["-P", str(path)]
    trace.touch()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        injected = Injection(tracer, trace)
        try:
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            if "attached" not in said:
                raise NotHere(f"`{' '.join(command)}` fails: {said.strip()}")
            yield injected
        finally:
            injected.end()


def check_strace(folder: Path) -> None:
    """Raises ``NotHere`` where this machine does not allow all of that."""
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        try:
            with injection(sleeping.pid, folder / "trace", "fdatasync", "EIO", path=folder / "nothing"):
                return
        finally:
            sleeping.kill()
