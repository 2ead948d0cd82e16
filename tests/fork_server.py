"""A process with the broker's modules and kernels loaded that forks a ``flintmq-broker`` on request.

A start takes a second, nearly all of it for imports; a fork has them already, and is still a process of its own.
``python -m tests.fork_server FD`` reads requests from a socket, in JSON: ``{"arguments": [...]}`` with three
descriptors (standard output, standard error, and one that is closed when the process ends) returns ``{"pid": N}``;
``{"wait": N}`` returns the exit status, once the process has ended. See ``tests.forked`` for the other side.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

import uvloop  # noqa: F401 - loaded for the forks, as the daemon does when it starts

from flintmq.broker import config, kernels  # noqa: F401 - loaded for the forks
from flintmq.broker.app import (
    daemon,
    lifecycle,  # noqa: F401 - loaded for the forks
)
from flintmq.broker.net.connection import ClientConnection
from flintmq.broker.requests.request import DeferredRequests
from tests.broker_constants import set_constants

MESSAGE_BYTES_MAX = 1 << 20
DESCRIPTORS_MAX = 3


def load() -> None:
    """Load everything into this process that its forks need."""
    for _ in kernels.warm(kernels.SERVING_MODULES):
        pass
    gc.collect()
    gc.freeze()


def next_order(orders: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork and wait until the other side closes, then exit. In each fork, return its order and descriptors."""
    while True:
        blob, descriptors, _, _ = socket.recv_fds(orders, MESSAGE_BYTES_MAX, DESCRIPTORS_MAX)
        if not blob:
            sys.exit(0)
        order = json.loads(blob)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            orders.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            orders.close()
            return order, list(descriptors)
        for fd in descriptors:
            os.close(fd)
        orders.send(json.dumps({"pid": pid}).encode())


def take_output(descriptors: list[int]) -> None:
    """Make these descriptors the fork's standard output and error."""
    for fd, standard in zip(descriptors, (1, 2), strict=True):
        os.dup2(fd, standard)
        os.close(fd)


def keep_lost_connections() -> list[DeferredRequests]:
    """Return a list that gets the deferred requests of each connection that is lost while some of them are open.

    Whatever they wait for must end them by the time the broker has stopped: a connection waits for them before it
    closes.
    """
    found: list[DeferredRequests] = []
    disconnected = ClientConnection.connection_lost

    def connection_lost(connection: ClientConnection, error: Exception | None) -> None:
        if connection.deferred.undispatched:
            found.append(connection.deferred)
        disconnected(connection, error)

    setattr(ClientConnection, "connection_lost", connection_lost)  # noqa: B010 - mypy refuses the assignment
    return found


def serve(arguments: list[str]) -> int | str | None:
    """Run the daemon; return what it exits with."""
    lost = keep_lost_connections()
    try:
        daemon.main(set_constants(arguments), prog_name="flintmq-broker")
    except SystemExit as end:
        open_requests = [each for each in lost if each.undispatched]
        if end.code == 0 and open_requests:
            return f"{len(open_requests)} connections ended with requests that nothing ever answered"
        return end.code
    return None


def leave(code: int | str | None) -> NoReturn:
    """End as the interpreter does, except that nothing is freed: that takes longer than the broker's start.

    It still waits for threads that are no daemons, and runs the functions that were registered for the end.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself calls
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def main() -> None:
    """Run the server; also the entry point of each fork."""
    load()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the socket
    order, descriptors = next_order(socket.socket(fileno=int(sys.argv[1])))
    take_output(descriptors[:2])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    leave(serve(order["arguments"]))


if __name__ == "__main__":
    main()
