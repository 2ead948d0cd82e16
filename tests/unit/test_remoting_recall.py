"""Handles of timed messages: as RocketMQ makes them, and refused if they are anything else."""

from __future__ import annotations

import base64

import pytest

from flintmq.broker.remoting.handles import RecallRefused, recall_handle, split_recall_handle
from flintmq.protocol.remoting import codes


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(("deliver_ms", "named_ms"), [(5_000, 4_001), (5_001, 5_001), (5_999, 5_001), (6_000, 5_001)])
def test_a_handle_names_the_second_in_which_the_message_is_due(deliver_ms: int, named_ms: int) -> None:
    handle = recall_handle("%RETRY%g", "broker-a", deliver_ms, "7F00")
    assert handle == encoded(f"v1 %RETRY%g broker-a {named_ms} 7F00")
    assert split_recall_handle(handle) == ("%RETRY%g", "broker-a", named_ms, "7F00")
    assert recall_handle("%RETRY%g", "broker-a", named_ms, "7F00") == handle


def test_a_handle_may_lack_its_padding_and_have_further_parts() -> None:
    handle = encoded("v1 t b 5001 key and more").rstrip("=")
    assert split_recall_handle(handle) == ("t", "b", 5001, "key")


@pytest.mark.parametrize("time", ["soon", "-1", "+5", "", "9" * 16, "٣"])
def test_a_time_that_is_no_number_has_passed(time: str) -> None:
    assert split_recall_handle(encoded(f"v1 t b {time} key")).deliver_ms == -1


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "handle",
        "not base64!",
        "YQ",
        base64.urlsafe_b64encode(b"v1 t b 5001 \xff").decode(),
        encoded("v2 t b 5001 key"),
        encoded("v1 t b 5001"),
        encoded("v1 t b 5001 "),
        encoded("v1 t b 5001 key\x02TIMER_DEL_UNIQKEY\x01other+key"),
        encoded("v1 t b 5001 " + "k" * 256),
        encoded("v1 t b 5001 key" + "x" * 5_000),
    ],
)
def test_anything_else_is_refused_with_advice(handle: str) -> None:
    with pytest.raises(RecallRefused, match="recall handle is invalid; pass the recallHandle") as refused:
        split_recall_handle(handle)
    assert refused.value.code == codes.ILLEGAL_OPERATION == 604
