"""Requests of RocketMQ's clients are served or refused, and the limits in the server's README are those of the code."""

from __future__ import annotations

from pathlib import Path

from flintmq.broker.remoting.registry import ROWS, UNSUPPORTED
from flintmq.broker.remoting.request import JSON_BYTES_MAX
from flintmq.broker.requests.connected_client import ASKED_MAX, KEPT_BYTES_MAX
from flintmq.protocol.remoting.fastjson import VALUES_MAX

ROOT = Path(__file__).resolve().parents[2]


def test_no_request_is_both_served_and_refused() -> None:
    assert not {code for code, _, _ in ROWS} & UNSUPPORTED.keys()


def test_the_table_of_memory_bounds_has_the_limits_of_bodies_subscriptions_and_checks() -> None:
    table = (ROOT / "broker" / "net" / "README.md").read_text(encoding="utf-8")
    shortest, longest = min(JSON_BYTES_MAX.values()) >> 10, max(JSON_BYTES_MAX.values()) >> 20
    assert f"| {shortest} KiB to {longest} MiB by request (`remoting/request.py`) and {VALUES_MAX:,} values;" in table
    assert f"those of one connection at most {KEPT_BYTES_MAX >> 20} MiB |" in table
    assert f"| each unanswered check of a producer, at most {ASKED_MAX:,} on a connection |" in table
