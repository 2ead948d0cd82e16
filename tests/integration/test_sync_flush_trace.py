"""The kernel's view: under sync flush an fdatasync of the CommitLog ends before each acknowledgement is sent."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Factory = Callable[..., Any]

MESSAGES = 20

_SYNCED = re.compile(r"fdatasync\(\d+<[^>]*/commitlog/\d{20}>\) += 0|fdatasync resumed>.* = 0")
_SYNC_BEGINS = re.compile(r"fdatasync\(\d+<[^>]*/commitlog/\d{20}>.*<unfinished")
_SENT = re.compile(r"(?:write|writev|sendmsg|sendto)\(\d+<TCP:")
_RECEIVED = re.compile(r"(?:read|recvfrom|recvmsg)\(\d+<TCP:.* = [1-9]\d*$")
_INTERRUPTED = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)$")


def _trace_allowed() -> bool:
    if shutil.which("strace") is None:
        return False
    probe = subprocess.run(["strace", "-o", "/dev/null", "-yy", "true"], capture_output=True, check=False)
    return probe.returncode == 0


@pytest.mark.skipif(not _trace_allowed(), reason="strace is not installed, or may not trace here")
@pytest.mark.parametrize(("policy", "wanted"), [("sync", True), ("async", False)])
def test_an_fdatasync_ends_between_each_message_and_its_acknowledgement(
    broker: Factory, connect: Factory, tmp_path: Path, policy: str, wanted: bool
) -> None:
    running = broker("--flush", policy, settings={"flush.interval_ms": 60_000})
    connection = connect(running)
    connection.produce("traced", b"the topic is there now").raise_for_error()
    trace = tmp_path / "trace"
    calls = "fdatasync,read,recvfrom,recvmsg,write,writev,sendmsg,sendto"
    command = ["strace", "-f", "-yy", "-e", f"trace={calls}", "-o", str(trace), "-p", str(running.process.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        for number in range(MESSAGES):
            connection.produce("traced", f"message {number}".encode()).raise_for_error()
        tracer.send_signal(signal.SIGINT)
        tracer.stderr.read()
    acknowledged, synced_before = _acknowledgements(trace.read_text().splitlines())
    assert acknowledged == MESSAGES
    # Without --flush sync no acknowledgement waits for the disk, which proves that the trace shows the difference.
    assert synced_before == (MESSAGES if wanted else 0)


def _acknowledgements(lines: list[str]) -> tuple[int, int]:
    """Return the number of acknowledgements, and how many had an fdatasync that began and ended after the message
    arrived.
    """
    sent = synced_before = 0
    begun = synced = False
    interrupted: dict[str, str] = {}
    """Beginning of each thread's call that strace shows in two parts: only that part names the file."""
    for line in lines:
        if part := _INTERRUPTED.match(line):
            interrupted[part[1]] = part[2]
        rest = _RESUMED.match(line)
        if _RECEIVED.search(interrupted.pop(rest[1], "") + rest[2] if rest else line):
            begun = synced = False
        elif _SYNC_BEGINS.search(line):
            begun = True
        elif _SYNCED.search(line):
            synced = synced or "resumed" not in line or begun
        elif _SENT.search(line):
            sent += 1
            synced_before += synced
            synced = False
    return sent, synced_before
