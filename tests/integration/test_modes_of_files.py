"""Whatever the process's umask says, only the broker's user can read a store, a backup and what is restored of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from flintmq.broker.app.daemon import main
from flintmq.client import Admin, Message, Producer
from flintmq.testing.started_broker import DAEMON
from tests.conftest import BrokerFactory
from tests.security_tools import set_user


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """Leave out no permission of what this process and its children create."""
    before = os.umask(0)
    yield
    os.umask(before)


def shown_to_others(folder: Path) -> list[str]:
    """Return what others may read, write or enter."""
    return [str(path) for path in (folder, *folder.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_nobody_else_can_read_a_store_or_a_backup(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker(program=DAEMON, store=tmp_path / "new" / "store")
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("orders", queues=2)
        producer.send(Message("orders", b"x" * 100_000, keys=["k"]))
        producer.send(Message("orders", b"later", delay=timedelta(hours=1)))
    assert running.stop() == 0
    set_user(running.store, "billing")
    for command in (["backup", str(running.store), str(tmp_path / "backup")],) * 2 + (
        ["restore", str(tmp_path / "backup"), str(tmp_path / "restored")],
    ):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
    assert [shown_to_others(tmp_path / name) for name in ("new", "backup", "restored")] == [[], [], []]
