"""Standard output of a program, which a full disk or a reader that is gone may refuse."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

EXIT_OUTPUT = 74
"""The output could not be written, such as to a full disk; EX_IOERR of ``sysexits.h``."""
EXIT_CLOSED_PIPE = 141
"""The reader of the output is gone, as 128 + SIGPIPE."""


class OutputFailed(Exception):
    """Standard output cannot be written.

    It is neither an ``OSError`` nor a ``FlintError``, so that no command takes it for a failure of its own work.
    """


class ErrorsFailed(OutputFailed, OSError):
    """Standard error cannot be written. Logging, which expects an ``OSError`` there, passes over it."""


class _Buffer(io.BufferedWriter):
    # Not a raw file: the signal of Ctrl-C in its ``write`` would let the buffer write the same bytes again.
    failed: type[OutputFailed] = OutputFailed

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise self.failed from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise self.failed from error


class _ErrorBuffer(_Buffer):
    failed = ErrorsFailed


@contextlib.contextmanager
def standard_output(program: str, *, errors_too: bool = False) -> Iterator[None]:
    """Run ``program``, and flush its output at the end. If that or any write fails, end the process: in silence if the
    reader of a pipe is gone, otherwise with a line that says why.

    ``errors_too``: standard error as well, then without a line. A program that must run on without its log leaves it.
    """
    _open_missing()
    usual = sys.stdout, sys.stderr  # they own the descriptors, so they stay
    try:
        sys.stdout = _checked(sys.stdout, _Buffer)
        if errors_too:
            sys.stderr = _checked(sys.stderr, _ErrorBuffer)
    except (OSError, ValueError):  # the output of a test
        yield
        return
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputFailed as failed:
        # Python flushes what is still in the buffer when it exits; that must not fail again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, usual[isinstance(failed, ErrorsFailed)].fileno())
        os.close(nowhere)
        sys.exit(_exit_code(program, failed.__cause__))


def _checked(usual: Any, buffer: type[_Buffer]) -> io.TextIOWrapper:
    """Return a stream as ``usual`` that raises the buffer's error. Raises OSError or ValueError without a file."""
    descriptor = usual.fileno()
    assert isinstance(usual, io.TextIOWrapper)
    usual.flush()
    return io.TextIOWrapper(
        buffer(io.FileIO(descriptor, "wb", closefd=False)),
        encoding=usual.encoding,
        errors=usual.errors,
        line_buffering=usual.line_buffering,
        write_through=usual.write_through,
    )


def _open_missing() -> None:
    """Replace each standard stream that the calling process has closed by the null device."""
    nowhere = None
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = nowhere or open(os.devnull, "r+", encoding="utf-8")  # noqa: PTH123, SIM115 - for as long as we run
            setattr(sys, name, nowhere)


def _exit_code(program: str, cause: BaseException | None) -> int:
    if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
        return EXIT_CLOSED_PIPE
    reason = cause.strerror if isinstance(cause, OSError) else cause
    with contextlib.suppress(OSError):  # standard error may be on the same full disk, or be what has failed
        sys.stderr.write(f"{program}: cannot write the output: {reason}\n")
        sys.stderr.flush()
    return EXIT_OUTPUT
