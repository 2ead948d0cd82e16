"""Runs of the offline tools, in this process and in one of their own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from flintmq.broker.tools.findings import Finding
from flintmq.broker.tools.verify import Verified, verify
from tests.forked import FORKS

TIMEOUT_S = 100


def verified(store: Path, *, segment_bytes: int = 1 << 20) -> Verified:
    """Verify the store in segments so small that threads share it."""
    return verify(store, lambda done, total: None, segment_bytes=segment_bytes)


def findings(store: Path, *, segment_bytes: int = 1 << 20) -> list[Finding]:
    """Return the findings of ``verify``: kind, file and position."""
    return list(verified(store, segment_bytes=segment_bytes).findings)


def findings_however_split(store: Path) -> list[Finding]:
    """Return the findings, which must be the same however the log is split, and leave the store unchanged."""
    before = everything(store)
    result = findings(store, segment_bytes=1 << 30)
    assert everything(store) == before
    in_parts = findings(store)
    assert {each.kind for each in in_parts} == {each.kind for each in result}
    # A range of missing units or keys is a finding in each part.
    assert {(each.kind, each.path, each.position) for each in result} <= {
        (each.kind, each.path, each.position) for each in in_parts
    }
    return result


@dataclass(frozen=True)
class Ended:
    """Exit code and lines of a command that ended."""

    code: int
    output: list[str]
    errors: str


def command(*arguments: object) -> list[str]:
    """Return the command line of ``flintmq-broker`` with these arguments."""
    return [sys.executable, "-m", "flintmq.broker.app.daemon", *map(str, arguments)]


def tool(*arguments: object) -> Ended:
    """Run ``flintmq-broker`` with these arguments, forked from a process that has loaded it."""
    done = FORKS.run([*map(str, arguments)], TIMEOUT_S)
    return Ended(done.returncode, done.stdout.splitlines(), done.stderr)


def everything(path: Path) -> dict[str, tuple[int, int, int, int, bytes]]:
    """Return mode, size, blocks, times of change, and content of everything in a store that is not open here."""
    found = {}
    for each in [path, *sorted(path.rglob("*"))]:
        status = each.stat()
        content = each.read_bytes() if each.is_file() and status.st_size < 1 << 26 else b""
        found[str(each)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, content)
    return found
