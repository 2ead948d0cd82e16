"""The broker of a test session: of its own, shared by the workers of pytest-xdist, or given by the user.

The workers of pytest-xdist share one broker, which a keeper runs (``keeper.py``). Each of them holds a shared lock on
one file for as long as it lives; these locks are the count of the users. Linux releases the lock of a worker that is
killed, so the keeper ends after the last user, however that ended.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..client import Admin, ConnectionFailed, FlintError, RequestTimeout
from .broker_handle import BrokerHandle, BrokerNotOwned
from .started_broker import START_SECONDS_MAX, STOP_SECONDS_MAX, BrokerFailed, LocalBroker

ADDRESS, USERS, STARTING = "address", "users.lock", "starting.lock"
"""Files of a shared broker's folder: its address while it runs, and the locks of its users and of its start."""
KEEPER = ("-P", "-m", "flintmq.testing.keeper")


class SharedBroker(BrokerHandle):
    """A broker that others use too. ``shared_with``: who they are."""

    def __init__(self, address: str, shared_with: str) -> None:
        self.address = address
        self._shared_with = shared_with

    def start(self) -> None:
        """Raise ``BrokerNotOwned``: it runs already."""
        raise self._refusal("started")

    def stop(self) -> None:
        """Raise ``BrokerNotOwned``: others use it."""
        raise self._refusal("stopped")

    def kill(self) -> None:
        """Raise ``BrokerNotOwned``: others use it."""
        raise self._refusal("killed")

    def _refusal(self, done: str) -> BrokerNotOwned:
        return BrokerNotOwned(
            f"the broker on {self.address} cannot be {done}: it belongs to {self._shared_with}. Get one of the "
            "test's own from the fixture flintmq_broker_factory"
        )


@contextlib.contextmanager
def session_broker(given: str, shared_folder: Path | None) -> Iterator[BrokerHandle]:
    """Yield the broker of a session. ``given``: the address of a running one, or empty; ``shared_folder``: a folder
    that only the workers of one run of pytest-xdist use, or None without pytest-xdist.

    Raises ``ConnectionFailed`` or ``RequestTimeout`` if the given broker does not answer: once for the session, so that
    not every test waits for it.
    """
    if given:
        _check_answers(given)
        yield SharedBroker(given, "those who run it (--flintmq-broker)")
    elif shared_folder is None or sys.platform == "win32":
        with LocalBroker() as broker:
            yield broker
    else:
        with shared_broker(shared_folder) as address:
            yield SharedBroker(address, "all workers of pytest-xdist")


def _check_answers(address: str) -> None:
    """Raise the reason if the broker does not answer; whatever else it refuses is up to the tests."""
    try:
        with Admin(address) as admin:
            admin.whoami()
    except (ConnectionFailed, RequestTimeout) as error:
        error.add_note("--flintmq-broker, FLINTMQ_TEST_BROKER or pytest's setting flintmq_broker names this broker")
        raise
    except FlintError:
        return


@contextlib.contextmanager
def shared_broker(folder: Path) -> Iterator[str]:
    """Yield the address of the broker that all users of ``folder`` share; the first user starts it. It runs until all
    users have left the context or ended."""
    folder.mkdir(exist_ok=True)
    with open_lock(folder / USERS) as users:
        with open_lock(folder / STARTING) as starting:
            lock(starting, exclusive=True)
            lock(users, exclusive=False)  # waits for a keeper that is about to end
            address = folder / ADDRESS
            found = address.read_text() if address.exists() else _start_keeper(folder)
        yield found


def open_lock(path: Path) -> IO[str]:
    """Open a file for locks, which ends all of this process's locks when it is closed."""
    return path.open("a")


def lock(file: IO[str], *, exclusive: bool) -> None:
    """Lock a file, alone or together with others; wait for it."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)


def _start_keeper(folder: Path) -> str:
    """Start a keeper; return the address of its broker. Raises ``BrokerFailed``."""
    command = [sys.executable, *KEEPER, str(folder)]
    seconds_max = START_SECONDS_MAX + STOP_SECONDS_MAX + 10
    done = subprocess.run(  # noqa: S603 - our own program
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds_max
    )
    if done.returncode != 0:
        raise BrokerFailed(done.stderr.strip() or f"the keeper of the shared broker ended with exit {done.returncode}")
    return done.stdout.strip()
