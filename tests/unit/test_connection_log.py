"""Log lines about a client's connections: one for each change, however often it is reported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.client import ConnectionFailed, endpoint
from flintmq.client.core.client_guard import Guard
from flintmq.client.core.consume.requests import max_offset
from flintmq.client.core.rpc.access import NO_ACCESS
from flintmq.client.core.rpc.address import Address
from flintmq.client.core.rpc.operation import Operation
from flintmq.client.core.rpc.session import Answer
from flintmq.client.endpoint import ConnectionLog
from flintmq.client.sync.rpc import Caller, Dialer
from flintmq.protocol.errors import AuthenticationFailed, SystemBusy

THERE = Address("127.0.0.1", 10911)
GONE = ConnectionFailed("the broker closed the connection")
AWAY = ConnectionFailed("cannot reach a broker")


class Said:
    """A log with a stopped clock, and what it logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> None:
        self.now = 100.0
        self.log = ConnectionLog("Producer", level, lambda: self.now)
        self._caplog = caplog

    @property
    def events(self) -> list[str]:
        """Events logged since the last call, all at the level INFO."""
        records = [*self._caplog.records]
        self._caplog.clear()
        assert all(record.levelno == logging.INFO for record in records)
        return [event_of(record) for record in records]


def event_of(record: logging.LogRecord) -> str:
    """Return what a record says, as ``client/endpoint.py`` names it."""
    event: str = vars(record)["event"]
    return event


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Said]:
    with caplog.at_level(logging.INFO, "flintmq"):
        yield Said(caplog)


def test_an_outage_logs_three_lines_for_any_number_of_attempts(said: Said, caplog: pytest.LogCaptureFixture) -> None:
    said.log.connected(THERE)
    said.log.connected(THERE)
    assert said.events == [endpoint.CONNECTED]
    for _ in range(50):
        said.log.lost(GONE)
        said.log.unreachable(AWAY)
        said.log.retried("PRODUCE", AWAY)
    assert said.events == [endpoint.LOST, endpoint.WAITING]
    said.now += 5.8
    said.log.connected(THERE)
    said.log.connected(THERE)
    assert "Producer: connected to the broker at 127.0.0.1:10911 again, after 5.8 s" in caplog.text
    assert said.events == [endpoint.BACK]


def test_waiting_for_a_broker_that_was_never_up_logs_one_line(said: Said) -> None:
    for _ in range(20):
        said.log.unreachable(AWAY)
    assert said.events == [endpoint.WAITING]


def test_a_permanent_error_is_not_logged_as_waiting(said: Said) -> None:
    said.log.unreachable(AuthenticationFailed("the password is wrong"))
    assert said.events == []


def test_a_busy_broker_and_a_flapping_connection_do_not_flood_the_log(
    said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        said.log.retried("PULL", SystemBusy("too many requests"))
    assert said.events == [endpoint.RETRIED] * 10
    for _ in range(1000):
        said.log.lost(GONE)
        said.log.connected(THERE)
    assert len(said.events) == 10
    said.now += 1.0
    said.log.lost(GONE)
    assert "1990 lines like this were left out" in caplog.text
    assert said.events == [endpoint.LOST]


def test_a_retried_call_logs_its_name_and_the_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ConnectionLog("Admin")
    caller = Caller(Dialer((THERE,), NO_ACCESS, log), Guard("Admin"), 60.0)
    refusals = [SystemBusy("too many requests"), SystemBusy("too many requests")]

    def exchange(operation: Operation[Any], deadline: float) -> Answer:
        if refusals:
            raise refusals.pop()
        return Answer(1, 0, {"offset": 7}, b"")

    monkeypatch.setattr(caller.pool, "exchange", exchange)
    with caplog.at_level(logging.INFO, "flintmq"):
        assert caller.call(max_offset("t", 0), caller.deadline(None)) == 7
    assert [event_of(record) for record in caplog.records] == [endpoint.RETRIED] * 2
    assert caplog.text.count("Admin: retrying GET_MAX_OFFSET: too many requests") == 2


def test_a_group_member_logs_a_lost_connection_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    said = Said(caplog, logging.WARNING)
    said.log.lost(GONE)
    assert [(record.levelno, event_of(record)) for record in caplog.records] == [(logging.WARNING, endpoint.LOST)]
