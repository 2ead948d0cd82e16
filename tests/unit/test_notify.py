"""Notifications to systemd, received on a socket of the test."""

from __future__ import annotations

import logging
import socket
import uuid
from pathlib import Path

import pytest

from flintmq.broker.app.output import ServiceManager


def listen(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.settimeout(60)
    sock.bind(address)
    return sock


def test_ready_and_stopping_are_notified(tmp_path: Path) -> None:
    with listen(str(tmp_path / "notify")) as sock:
        manager = ServiceManager(str(tmp_path / "notify"))
        manager.ready("127.0.0.1:10911")
        manager.stopping()
        assert sock.recv(4096) == b"READY=1\nSTATUS=listening on 127.0.0.1:10911"
        assert sock.recv(4096) == b"STOPPING=1\nSTATUS=stopping"


def test_an_abstract_socket_is_reached() -> None:
    name = f"flintmq-{uuid.uuid4()}"
    with listen(f"\0{name}") as sock:
        ServiceManager(f"@{name}").ready("here")
        assert sock.recv(4096).startswith(b"READY=1\n")


def test_a_start_that_makes_progress_extends_its_timeout_from_time_to_time(tmp_path: Path) -> None:
    with listen(str(tmp_path / "notify")) as sock:
        manager = ServiceManager(str(tmp_path / "notify"))
        for done in range(100):
            manager.starting("queues", done, 100)
        manager.ready("here")
        assert sock.recv(4096) == b"STATUS=starting: queues, 0 %\nEXTEND_TIMEOUT_USEC=60000000"
        assert sock.recv(4096).startswith(b"READY=1")


def test_nothing_is_sent_without_a_notify_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    manager = ServiceManager()
    manager.starting("queues", 0, 0)
    manager.ready("here")


def test_a_manager_that_is_gone_does_not_end_the_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ServiceManager(str(tmp_path / "nobody")).ready("here")
    assert "NOTIFY_SOCKET" in caplog.text
