"""Request and reply of RocketMQ's clients at the level of the protocol."""

from __future__ import annotations

import pytest

from flintmq.protocol.remoting import codes
from tests.remoting_tools import RemotingBroker, RemotingSocket, send_fields

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def _reply(remote: RemotingSocket, client_id: str, code: int = codes.SEND_REPLY_MESSAGE_V2) -> int:
    properties = {"CORRELATION_ID": "c", "REPLY_TO_CLIENT": client_id, "MSG_TYPE": "reply"}
    fields = send_fields(REPLY_TOPIC, properties)
    if code == codes.SEND_REPLY_MESSAGE:
        names = {"a": "producerGroup", "b": "topic", "e": "queueId", "i": "properties", "g": "bornTimestamp"}
        fields = {name: fields[short] for short, name in names.items()}
    return remote.send(code, fields, b"the reply")


@pytest.mark.parametrize("code", [codes.SEND_REPLY_MESSAGE_V2, codes.SEND_REPLY_MESSAGE])
def test_a_reply_reaches_the_client_that_asked(gateway: RemotingBroker, group: str, code: int) -> None:
    with gateway.connect() as asker, gateway.connect() as consumer:
        asker.heart_beat(f"asker-{group}", (group,))
        number = _reply(consumer, f"asker-{group}", code)
        pushed = asker.receive_request(codes.PUSH_REPLY_MESSAGE_TO_CLIENT)
        assert bytes(pushed.body) == b"the reply"
        properties = dict(pair.split("\x01") for pair in pushed.fields["properties"].split("\x02") if pair)
        assert properties.pop("PUSH_REPLY_TIME").isdigit()
        assert properties == {"CORRELATION_ID": "c", "REPLY_TO_CLIENT": f"asker-{group}", "MSG_TYPE": "reply"}
        host, port = consumer.local_address
        assert pushed.fields["bornHost"] == f"{host}:{port}"
        assert pushed.fields["storeHost"] == "{}:{}".format(*gateway.address)
        assert (pushed.fields["topic"], pushed.fields["bornTimestamp"]) == (REPLY_TOPIC, "1700000000000")
        asker.respond(pushed)
        answer = consumer.receive_for(number)
    assert answer.code == codes.SUCCESS
    assert (answer.fields["msgId"], answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0", "0")


def test_a_reply_that_the_asking_client_refuses_fails(gateway: RemotingBroker, group: str) -> None:
    with gateway.connect() as asker, gateway.connect() as consumer:
        asker.heart_beat(f"asker-{group}", (group,))
        number = _reply(consumer, f"asker-{group}")
        asker.respond(asker.receive_request(codes.PUSH_REPLY_MESSAGE_TO_CLIENT), codes.SYSTEM_ERROR, "no")
        assert consumer.receive_for(number).code == codes.SYSTEM_ERROR


def test_a_reply_fails_when_the_asking_client_goes(gateway: RemotingBroker, group: str) -> None:
    with gateway.connect() as consumer:
        with gateway.connect() as asker:
            asker.heart_beat(f"asker-{group}", (group,))
            number = _reply(consumer, f"asker-{group}")
            asker.receive_request(codes.PUSH_REPLY_MESSAGE_TO_CLIENT)
        assert consumer.receive_for(number).code == codes.SYSTEM_ERROR
        gone = consumer.receive_for(_reply(consumer, f"asker-{group}"))
    assert gone.code == codes.SYSTEM_ERROR
    assert gone.remark.startswith(f"push reply message fail, channel of <asker-{group}> not found.")


def test_a_reply_to_no_client_or_to_another_topic_is_refused(remote: RemotingSocket, topic: str) -> None:
    nobody = remote.call(codes.SEND_REPLY_MESSAGE_V2, send_fields(REPLY_TOPIC, {}), b"r")
    assert (nobody.code, "REPLY_TO_CLIENT" in nobody.remark) == (codes.MESSAGE_ILLEGAL, True)
    other = remote.call(codes.SEND_REPLY_MESSAGE_V2, send_fields(topic, {"REPLY_TO_CLIENT": "c"}), b"r")
    assert other.code == codes.TOPIC_NOT_EXIST


def test_requests_of_one_client_are_answered_while_a_reply_is_on_its_way(gateway: RemotingBroker, group: str) -> None:
    with gateway.connect() as asker, gateway.connect() as consumer:
        asker.heart_beat(f"asker-{group}", (group,))
        number = _reply(consumer, f"asker-{group}")
        pushed = asker.receive_request(codes.PUSH_REPLY_MESSAGE_TO_CLIENT)
        assert consumer.produce(f"topic-{group}").code == codes.SUCCESS
        asker.respond(pushed)
        assert consumer.receive_for(number).code == codes.SUCCESS
