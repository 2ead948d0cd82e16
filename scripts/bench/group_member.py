"""A member of a group in a process of its own, which can be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flintmq.client import PushConsumer

WORKERS = 1


def make_member(address: str, group: str, topic: str) -> PushConsumer:
    """Return a member, not started yet, that is done with each message as soon as it has it."""
    return PushConsumer(address, group, topic, lambda message: None, workers=WORKERS)


@contextmanager
def member_process(address: str, group: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has joined the group; kill it at the end, unless it has ended."""
    command = [sys.executable, "-m", "bench.group_member", address, group, topic]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    with make_member(*sys.argv[1:4]):
        print("joined", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
