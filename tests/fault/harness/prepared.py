"""A process with the daemon and its kernels loaded that forks brokers on request.

A start then costs the fork and the recovery, without the second that the imports take. Requests arrive over a socket,
in JSON: ``{"arguments": [...], "faults": {...}, "witness": PATH}`` with two descriptors for the broker's standard
output and error returns ``{"pid": N}``; ``{"wait": N}`` returns the exit status, once the process has ended.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flintmq.broker.app import daemon, lifecycle
from flintmq.broker.background.flush import FileSync, Notice
from flintmq.broker.store import MappedFile, MessageStore
from flintmq.broker.store.files.file_system import Files

from ...broker_constants import set_constants
from ...fork_server import load, next_order, take_output
from .failing_files import FailingInBroker
from .points import DyingAtPoint
from .power import DyingByPowerCut

SLOW_DISK_S = 0.05
"""Disk latency of a broker that acknowledges before it flushes: long enough for the acknowledgement to be sent first.
"""


def equip(store: Path, faults: dict[str, Any], witness: int) -> None:
    """Replace this process's broker files by faulty ones, and insert the defects by which the harness tests itself."""
    files: Files
    match {} if faults.get("faultless") else faults:
        case {"point": str(name), "nth": int(nth)}:
            files = DyingAtPoint(store, name, nth, witness)
            files.watch()
        case {"operation": str(operation), "nth": int(nth), "number": int(number)}:
            options = {name: faults[name] for name in ("path", "until") if name in faults}
            files = FailingInBroker(store, operation, nth, number, witness, **options)
            files.watch()
        case {"cut": str(target), "lives": int(lives), "seed": seed}:
            files = DyingByPowerCut(store, lives, Path(target), str(seed), witness, lying=bool(faults.get("lying")))
            files.watch()
        case _:
            files = Files()
    setattr(lifecycle, "MessageStore", functools.partial(MessageStore, files=files))  # noqa: B010 - a plain assignment to a method is an error for mypy
    if faults.get("acknowledges_early"):
        flush = MessageStore.flush

        def acknowledge_then_flush(store: MessageStore, on_disk: Callable[[int], object] | None = None) -> int:
            if on_disk is not None:
                flushed = store.commitlog.flushed_offset
                store.commitlog.flushed_offset = store.write_offset
                on_disk(store.write_offset)
                time.sleep(SLOW_DISK_S)
                store.commitlog.flushed_offset = flushed
            return flush(store, on_disk)

        setattr(MessageStore, "flush", acknowledge_then_flush)  # noqa: B010 - a plain assignment to a method is an error for mypy

        def acknowledge_only(sync: FileSync, file: MappedFile, notice: Notice | None) -> None:
            sync._loop.call_soon(sync._on_synced, None)

        setattr(FileSync, "request", acknowledge_only)  # noqa: B010 - as above


def be_broker(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run the daemon in the fork, from its command line on."""
    code = 1
    try:
        take_output(descriptors)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        witness = os.open(order["witness"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        equip(Path(order["store"]), order["faults"], witness)
        daemon.main(["serve", "--store", order["store"], *set_constants(order["arguments"])], standalone_mode=False)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - any error belongs in the broker's log
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve requests; usage: ``prepared FD``, the socket's descriptor."""
    load()
    be_broker(*next_order(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
