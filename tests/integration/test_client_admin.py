"""The admin against a real broker: topics, groups, offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flintmq.client import (
    Admin,
    FlintError,
    GroupNotExist,
    GroupRunning,
    InvalidArgument,
    Message,
    Producer,
    TopicInfo,
    TopicNotExist,
)
from tests.group_tools import fill, joined

if TYPE_CHECKING:
    from tests.conftest import ConnectionFactory, RunningBroker


class TestAdmin:
    def test_topics_are_made_shown_and_deleted(self, admin: Admin, producer: Producer, topic: str) -> None:
        admin.create_topic(topic, queues=6)
        assert admin.topics()[topic] == TopicInfo(topic, 6, 6)
        assert producer.send(Message(topic, b""), queue=5).queue == 5
        admin.create_topic(topic, queues=8)
        assert admin.topics()[topic].queues == 8
        assert len(admin.topic_stats(topic)) == 8
        admin.delete_topic(topic)
        assert topic not in admin.topics()
        with pytest.raises(TopicNotExist):
            admin.topic_stats(topic)

    def test_invalid_topics_are_refused(self, admin: Admin) -> None:
        with pytest.raises(InvalidArgument):
            admin.create_topic("t", queues=0)
        with pytest.raises(FlintError, match="a b"):
            admin.create_topic("a b")
        with pytest.raises(FlintError):
            admin.create_topic("SCHEDULE_TOPIC_XXXX")

    @pytest.mark.parametrize("offsets", ["earliest", {0: "1"}, {0: 1 << 70}])
    def test_offsets_for_a_reset_must_be_integers_by_queue(self, admin: Admin, offsets: Any) -> None:
        with pytest.raises(InvalidArgument, match="offsets"):
            admin.reset_offsets("g", "t", offsets)

    def test_a_group_is_shown_reset_and_deleted(
        self, admin: Admin, producer: Producer, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        fill(producer, topic, 40)
        with pytest.raises(GroupNotExist):
            admin.group(topic)
        member = joined(connect(shared_broker), topic, "m-1", topic)
        (info,) = [info for info in admin.groups() if info.group == topic]
        assert (info.state, info.members, list(info.topics)) == ("stable", 1, [topic])
        with pytest.raises(GroupRunning):
            admin.reset_offsets(topic, topic, {0: 4})
        with pytest.raises(GroupRunning):
            admin.delete_group(topic)
        admin.reset_offsets(topic, topic, {0: 4}, force=True)
        status = admin.group(topic)
        assert (status.state, status.delayed, [each.member for each in status.members]) == ("stable", 0, ["m-1"])
        assert [(queue.committed, queue.lag, queue.in_flight) for queue in status.queues] == [(4, 6, 0)] + [
            (0, 10, 0)
        ] * 3
        member.leave()
        assert admin.group(topic).state == "empty"
        admin.delete_group(topic)
        with pytest.raises(GroupNotExist):
            admin.delete_group(topic)

    def test_status_says_how_the_broker_is(self, admin: Admin) -> None:
        status = admin.status()
        assert status["version"]
        assert status["connections"] >= 1
