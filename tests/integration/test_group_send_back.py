"""Consumer groups over the wire: messages that a member sends back."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.protocol import commands
from flintmq.protocol.commands import PHYSICAL_OFFSET_STRUCT
from flintmq.protocol.errors import (
    DelayIllegal,
    EpochFenced,
    InvalidParameter,
    MemberUnknown,
    MessageNotFound,
    TopicNotExist,
)
from flintmq.protocol.storage.record import decode_record
from tests.conftest import RawConnection
from tests.group_tools import Members
from tests.store_tools import split_answer


def send_back(peer: RawConnection, group: str, *physical_offsets: int, **fields: Any) -> Any:
    body = b"".join(map(PHYSICAL_OFFSET_STRUCT.pack, physical_offsets))
    return peer.call(commands.CONSUMER_SEND_MSG_BACK, {"group": group, "count": len(physical_offsets), **fields}, body)


def physical_offsets_of(peer: RawConnection, topic: str, queue: int = 0) -> list[int]:
    answer = peer.pull(topic, queue, 0)
    return [decode_record(blob).physical_offset for blob in split_answer(answer.body, answer.fields["count"])]


def test_a_message_sent_back_is_delivered_again_in_the_groups_retry_topic(
    filled: str, group: str, peer: RawConnection
) -> None:
    first = physical_offsets_of(peer, filled)[0]
    done = send_back(peer, group, first, delay_level=1)
    assert done.fields == {"retried": 1, "dead": 0}
    answer = peer.pull(f"%RETRY%{group}", 0, 0, wait_ms=30_000)
    (record,) = map(decode_record, split_answer(answer.body, answer.fields["count"]))
    assert (record.body, record.reconsume_times) == (b"0", 1)
    assert record.property_map()["RETRY_TOPIC"] == filled
    dead = send_back(peer, group, record.physical_offset, retry_times_max=1)
    assert dead.fields == {"retried": 0, "dead": 1}
    answer = peer.pull(f"%DLQ%{group}")
    (record,) = map(decode_record, split_answer(answer.body, answer.fields["count"]))
    assert (record.body, record.reconsume_times) == (b"0", 2)
    assert record.property_map()["RETRY_TOPIC"] == filled


def test_why_each_failed_is_kept_with_it(filled: str, group: str, peer: RawConnection) -> None:
    def reasons(queue_offset: int) -> list[str]:
        answer = peer.pull(f"%DLQ%{group}", 0, queue_offset, wait_ms=30_000)
        records = map(decode_record, split_answer(answer.body, answer.fields["count"]))
        return [record.property_map()["RETRY_REASON"] for record in records]

    first, second, third = physical_offsets_of(peer, filled)
    send_back(peer, group, first, second, delay_level=-1, reasons="ValueError: a\x02KeyError: b").raise_for_error()
    assert reasons(0) == ["ValueError: a", "KeyError: b"]
    send_back(peer, group, third, delay_level=-1, reason="ü" * 1024).raise_for_error()
    assert reasons(2) == ["ü" * 1024]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reason": "x" * 1025}, "1024"),
        ({"reasons": "a\x02b\x02c"}, "reasons has 3 entries for 2 messages"),
        ({"reasons": "a\x02" + "x" * 1025}, "at most 1024"),
        ({"reasons": "a\x02b", "reason": "c"}, "both reason and reasons"),
        ({"reason": 5}, "reason"),
    ],
)
def test_reasons_that_cannot_be_kept_are_refused_and_nothing_is_sent_back(
    filled: str, group: str, peer: RawConnection, fields: dict[str, Any], said: str
) -> None:
    first, second = physical_offsets_of(peer, filled)[:2]
    refused = send_back(peer, group, first, second, delay_level=-1, **fields)
    assert refused.code == InvalidParameter.code
    assert said in refused.fields["message"]
    assert peer.pull(f"%DLQ%{group}").code == TopicNotExist.code


def test_an_invalid_send_back_is_refused_as_a_whole(
    filled: str, group: str, peer: RawConnection, member: Members
) -> None:
    first, second = physical_offsets_of(peer, filled)[:2]
    assert send_back(peer, group, first, 2**40).code == MessageNotFound.code
    assert send_back(peer, group, first + 1).code == MessageNotFound.code
    assert send_back(peer, group, first, delay_level=19).code == DelayIllegal.code
    assert send_back(peer, group, first, delay_level=-2).code == InvalidParameter.code
    assert send_back(peer, group, first, second, count=1).code == InvalidParameter.code
    assert send_back(peer, "no/slash", first).code == InvalidParameter.code
    holder = member("a")
    holder.beat(filled)
    fenced = send_back(peer, group, first, member="a", epoch=1)
    assert fenced.code == EpochFenced.code
    assert send_back(peer, group, first, member="b", epoch=holder.epoch).code == MemberUnknown.code
    answer = peer.pull(f"%RETRY%{group}", 0, 0)
    assert answer.code != 0
