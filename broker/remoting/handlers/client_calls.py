"""GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY: requests that a live client answers, by way of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....protocol.auth.permissions import QUERY, TOPIC
from ....protocol.errors import BrokerError, BrokerFailure
from ....protocol.names import check_client_group
from ....protocol.remoting import codes
from ....protocol.remoting.command import RemotingFrame
from ..audit import audit_change
from ..client import RemotingClient

if TYPE_CHECKING:
    from ....protocol.frames import Frame
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

TIMEOUT_S = 10.0
_RUNNING_INFO_FIELDS = ("consumerGroup", "clientId", "jstackEnable")
_CONSUME_DIRECTLY_FIELDS = ("consumerGroup", "clientId", "msgId", "topic")
_SIZE_BYTES = 4


class ClientSilent(BrokerError):
    """The client did not answer in time."""

    code, name, retriable = codes.CONSUME_MSG_TIMEOUT, "CONSUME_MSG_TIMEOUT", True


def get_consumer_running_info(request: RemotingRequest, groups: GroupCoordinator) -> None:
    """Return what a client says about itself: its settings, queues and rates."""
    client_id, client = _client(request, groups)
    _ask(request, client, client_id, codes.GET_CONSUMER_RUNNING_INFO, _passed_on(request, _RUNNING_INFO_FIELDS), b"")


def consume_message_directly(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Let a client consume a stored message at once, outside of its queue; return how that ended."""
    client_id, client = _client(request, groups)
    message_id = request.ext.text("msgId")
    fields = _passed_on(request, _CONSUME_DIRECTLY_FIELDS)
    fields |= {"brokerName": gateway.broker_name, "topicSysFlag": "0", "groupSysFlag": "0"}
    access = request.peer.access

    def view(hot: bool) -> memoryview:
        # By its id alone: a client that retries a message names its first topic, not that of the record.
        result = store.view(message_id, "", hot, lambda topic: access is None or access.allows(QUERY, TOPIC, topic))
        return memoryview(result.body)[_SIZE_BYTES * result.count :]

    def found(record: memoryview) -> None:
        audit_change(request, f"group {fields['consumerGroup']}, client {client_id}, message {message_id}")
        _ask(request, client, client_id, codes.CONSUME_MESSAGE_DIRECTLY, fields, bytes(record))

    request.after_dispatch(lambda: request.read(view, found))


def _passed_on(request: RemotingRequest, names: tuple[str, ...]) -> dict[str, str]:
    """Return the fields that the request is defined to have: nothing else of a request is for another client."""
    fields = request.received.fields
    return {name: fields[name] for name in names if name in fields}


def _client(request: RemotingRequest, groups: GroupCoordinator) -> tuple[str, RemotingClient]:
    ext = request.ext
    name, client_id = check_client_group(ext.text("consumerGroup")), ext.text("clientId")
    group = groups.clients.groups.get(name)
    client = group.clients.get(client_id) if group is not None else None
    remote = client.identity.remote if client is not None else None
    if not isinstance(remote, RemotingClient):
        raise BrokerFailure(f"The Consumer <{name}> <{client_id}> not online")
    return client_id, remote


def _ask(
    request: RemotingRequest, client: RemotingClient, client_id: str, code: int, fields: Mapping[str, str], body: bytes
) -> None:
    """Send the request to the client, and pass its answer on; give up after ``TIMEOUT_S``."""
    if not client.may_be_sent():
        raise ClientSilent(f"consumer <{client_id}> does not read what it is sent; try again later")
    # Before the client is asked, which would do its work for nothing.
    request.deferred.check_may_wait()
    answers: list[tuple[int, str, bytes]] = []
    done = request.later(lambda: _pass_on(request, answers[0]))
    # The wait ends with the first of three: the answer, the loss of the client's connection, the time limit.
    waiting = [True]

    def end(error: BrokerError | None) -> None:
        if waiting:
            waiting.clear()
            timer.cancel()
            done(error)

    def answered(frame: Frame | None) -> None:
        if not isinstance(frame, RemotingFrame):
            end(BrokerFailure(f"the connection of client {client_id} was lost before it answered"))
            return
        answers.append((frame.code, frame.remark, bytes(frame.body)))
        end(None)

    timer = asyncio.get_running_loop().call_later(
        TIMEOUT_S, lambda: end(ClientSilent(f"consumer <{client_id}> did not answer within {TIMEOUT_S:.0f} s"))
    )
    # After the timer is there: for a client that is gone, ``answered`` is called at once.
    client.send_request(code, fields, body, answered)


def _pass_on(request: RemotingRequest, answer: tuple[int, str, bytes]) -> None:
    code, remark, body = answer
    request.reply(body=body, code=code, remark=remark or None)
