"""The process that runs the broker shared by the workers of pytest-xdist.

``python -m flintmq.testing.keeper FOLDER`` prints the broker's address and returns once the broker listens. Its child
keeps the broker running until it gets the lock that every user of the broker holds, so no user has to report its end.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from .session_broker import ADDRESS, USERS, lock, open_lock
from .started_broker import BrokerFailed, LocalBroker

LOG = "keeper.log"
LISTENS, FAILED = b"+", b"-"


def main(folder: Path) -> int:
    """Start the keeper and wait until its broker listens; return the exit code."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        _keep(folder, writing)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as report:
        text = report.read()
    if text.startswith(LISTENS):
        print(text[1:].decode())  # noqa: T201 - the answer to the user's process
        return 0
    print(text[1:].decode(errors="replace") or "the keeper ended; see its log", file=sys.stderr)  # noqa: T201 - as above
    return 1


def _keep(folder: Path, report: int) -> None:
    """Run the broker until its users have ended. ``report``: pipe for its address, or for the error."""
    os.setsid()  # Ctrl-C is for the users
    with Path(os.devnull).open("rb") as nothing, (folder / LOG).open("ab") as log:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with contextlib.ExitStack() as running:
        try:
            broker = running.enter_context(LocalBroker())
        except BrokerFailed as error:
            os.write(report, FAILED + str(error).encode())
            return
        address = folder / ADDRESS
        address.with_suffix(".new").write_text(broker.address)
        address.with_suffix(".new").replace(address)
        os.write(report, LISTENS + broker.address.encode())
        os.close(report)
        with open_lock(folder / USERS) as users:
            lock(users, exclusive=True)
            # pytest may remove its folder as soon as the last worker has ended.
            address.unlink(missing_ok=True)
            running.close()  # under the lock: a new user waits, and starts another broker


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
