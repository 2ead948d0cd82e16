"""Receipts, sessions, operations, errors, and the modules that the client imports."""

from __future__ import annotations

import copy
import pickle
import struct
import subprocess
import sys
from typing import Any

import msgpack
import pytest

import flintmq.client
from flintmq.client import (
    DeliveryFailed,
    FlintError,
    InvalidArgument,
    Receipt,
    RemoteProtocolError,
    RequestTimeout,
    SystemBusy,
    TopicNotExist,
    VersionNotSupported,
)
from flintmq.client.core import admin as setting_operations
from flintmq.client.core import topics as topic_operations
from flintmq.client.core.consume import requests
from flintmq.client.core.produce.receipts import Acknowledged, FrameOutcome, Receipts, settle
from flintmq.client.core.rpc.operation import Operation, backoff_seconds, is_retriable
from flintmq.client.core.rpc.session import ASKED_MAX, Answer, Session
from flintmq.protocol.commands import GET_MAX_OFFSET, PROTOCOL_VERSION, PULL
from flintmq.protocol.frames import ONE_WAY, REQUEST, RESPONSE, FrameParser, encode_frame


def acknowledged(first: int, count: int, queue: int = 0, topic: str = "t") -> Acknowledged:
    offsets = struct.pack(f">{count}q", *range(first * 100, (first + count) * 100, 100))
    return Acknowledged(topic, queue, first, 5, "AB" * 10, first, offsets)


class TestReceipts:
    def test_receipts_are_in_the_order_of_the_messages(self) -> None:
        parts = [FrameOutcome(range(5, 9), acknowledged(5, 4)), FrameOutcome(range(5), acknowledged(0, 5))]
        receipts = settle(parts, DeliveryFailed)
        assert [receipt.queue_offset for receipt in receipts] == list(range(9))
        assert [receipt.physical_offset for receipt in receipts] == list(range(0, 900, 100))
        assert receipts[-1] == receipts[8] == Receipt("AB" * 10 + f"{8:012X}", "t", 0, 8, 800, 5)
        assert receipts[2:4] == [receipts[2], receipts[3]]
        assert len(receipts) == 9
        assert receipts[3] in receipts

    def test_receipts_are_in_order_even_if_messages_went_to_different_queues(self) -> None:
        parts = [
            FrameOutcome([0, 2, 4], acknowledged(0, 3, queue=1)),
            FrameOutcome([1, 3], acknowledged(10, 2, queue=2)),
        ]
        receipts = settle(parts, DeliveryFailed)
        assert [(one.queue, one.queue_offset) for one in receipts] == [(1, 0), (2, 10), (1, 1), (2, 11), (1, 2)]

    @pytest.mark.parametrize("index", [9, -10, 1000])
    def test_an_index_after_the_last_receipt_is_an_index_error(self, index: int) -> None:
        receipts = settle([FrameOutcome(range(9), acknowledged(0, 9))], DeliveryFailed)
        with pytest.raises(IndexError):
            receipts[index]

    def test_a_receipt_is_made_on_demand(self) -> None:
        receipts = settle([FrameOutcome(range(3), acknowledged(0, 3))], DeliveryFailed)
        assert receipts[1] is not receipts[1]
        assert isinstance(receipts, Receipts)
        assert repr(receipts) == "<Receipts of 3 messages>"
        assert receipts == list(receipts)

    def test_failures_are_reported_in_ranges(self) -> None:
        error = TopicNotExist("no such topic")
        parts = [
            FrameOutcome(range(3), acknowledged(0, 3)),
            FrameOutcome(range(3, 10), error),
            FrameOutcome([10], RequestTimeout("late")),
            FrameOutcome([11], acknowledged(3, 1)),
        ]
        with pytest.raises(DeliveryFailed) as raised:
            settle(parts, DeliveryFailed)
        assert str(raised.value) == (
            "8 of 12 messages were not acknowledged: messages 3 to 9: TopicNotExist: no such topic; "
            "message 10: RequestTimeout: late"
        )
        assert raised.value.failed == list(range(3, 11))
        assert [receipt is None for receipt in raised.value.receipts] == [3 <= place <= 10 for place in range(12)]
        assert not raised.value.retriable

    def test_stored_at_is_an_aware_datetime(self) -> None:
        assert acknowledged(0, 1).receipt(0).stored_at.utcoffset() is not None


def answered(session: Session, *frames: bytes) -> list[Answer]:
    blob = b"".join(frames)
    taken = []
    while blob:
        room = session.parser.writable()
        part = blob[: len(room)]
        room[: len(part)] = part
        session.parser.received(len(part))
        blob = blob[len(part) :]
        taken += session.answers()
    return taken


HELLO_FIELDS = {
    "protocol": 1,
    "broker": "b",
    "version": "1",
    "flush": "sync",
    "frame_bytes_max": 1 << 24,
    "produce_frame_bytes_max": 1 << 20,
    "message_bytes_max": 1 << 19,
}


class TestSession:
    def test_hello_is_the_first_request(self) -> None:
        session = Session()
        parser = FrameParser()
        hello = session.hello("me")
        parser.writable()[: len(hello)] = hello
        parser.received(len(hello))
        frame = parser.next_frame()
        assert frame is not None
        assert (frame.kind, frame.code, frame.fields) == (REQUEST, 1000, {"protocol": PROTOCOL_VERSION, "client": "me"})
        (answer,) = answered(session, encode_frame(RESPONSE, 0, frame.request_id, {**HELLO_FIELDS, "new": 1}))
        assert session.hello_answered(answer).produce_frame_bytes_max == 1 << 20

    @pytest.mark.parametrize(
        ("code", "fields", "error"),
        [
            (15, {"message": "only 2"}, VersionNotSupported),
            (2, {"message": "full"}, SystemBusy),
            (0, {**HELLO_FIELDS, "protocol": 2}, VersionNotSupported),
            (0, {}, RemoteProtocolError),
            (0, {**HELLO_FIELDS, "flush": 5}, RemoteProtocolError),
        ],
    )
    def test_an_incompatible_broker_is_refused(
        self, code: int, fields: dict[str, Any], error: type[FlintError]
    ) -> None:
        with pytest.raises(error):
            Session().hello_answered(Answer(1, code, fields, b""))

    def test_request_ids_differ_and_wrap(self) -> None:
        session = Session()
        assert len({session.request(PULL, {}, 0)[0] for _ in range(100)}) == 100
        session._next_id = 2**31 - 1
        assert [session.request(PULL, {}, 0)[0] for _ in range(2)] == [2**31 - 1, 1]

    def test_requests_of_the_broker_are_kept_apart_from_responses(self) -> None:
        session = Session()
        (answer,) = answered(
            session,
            encode_frame(REQUEST, 39, 7, {"group": "g"}, b"half"),
            encode_frame(RESPONSE, 0, 8, {}, b"body"),
            encode_frame(ONE_WAY, 40, 0, {}),
        )
        assert (answer.request_id, answer.body) == (8, b"body")
        asked, told = session.take_asked()
        assert (asked.code, asked.request_id, asked.fields, asked.body) == (39, 7, {"group": "g"}, b"half")
        assert (told.code, told.body) == (40, b"")
        assert asked.wants_answer
        assert not told.wants_answer
        assert session.take_asked() == []

    def test_a_reply_answers_the_brokers_request(self) -> None:
        session, broker = Session(), Session()
        answered(session, encode_frame(REQUEST, 39, 7, {}))
        (asked,) = session.take_asked()
        (answer,) = answered(broker, session.reply(asked, 0, {"outcome": "commit"}, 4) + b"body")
        assert (answer.request_id, answer.code, answer.body) == (7, 0, b"body")
        assert answer.fields == {"outcome": "commit"}

    def test_requests_that_are_not_taken_do_not_pile_up(self) -> None:
        session = Session()
        answered(session, *(encode_frame(REQUEST, 39, number, {}) for number in range(1, 2 * ASKED_MAX)))
        taken = session.take_asked()
        assert [asked.request_id for asked in taken] == list(range(ASKED_MAX, 2 * ASKED_MAX))

    @pytest.mark.parametrize("size", [10, 100_000, 1_000_000, 5_000_000])
    def test_bodies_stay_valid_after_further_frames(self, size: int) -> None:
        session = Session()
        frames = [encode_frame(RESPONSE, 0, number, {}, bytes([number]) * size) for number in range(1, 6)]
        answers = [answer for frame in frames for answer in answered(session, frame)]
        answers += answered(session, *frames)
        for place, answer in enumerate(answers):
            assert bytes(answer.body) == bytes([place % 5 + 1]) * size

    def test_bytes_that_violate_the_protocol_raise_an_error(self) -> None:
        with pytest.raises(RemoteProtocolError):
            answered(Session(), b"HTTP/1.1 400 Bad Request\r\n\r\n")


class TestOperations:
    def test_an_error_response_is_raised_as_its_class(self) -> None:
        operation = requests.max_offset("t", 0)
        with pytest.raises(TopicNotExist, match="no t"):
            operation.result(Answer(1, 17, {"message": "no t"}, b""))

    @pytest.mark.parametrize(
        ("operation", "fields", "body"),
        [
            (requests.max_offset("t", 0), {}, b""),
            (requests.max_offset("t", 0), {"offset": "1"}, b""),
            (topic_operations.topic_stats("t"), {"count": 2}, bytes(10)),
            (requests.committed("g", "t"), {"count": 1}, b""),
            (topic_operations.topics(), {"count": 1}, b"\xc1"),
            (topic_operations.topics(), {"count": 1}, msgpack.packb(5)),
            (topic_operations.topics(), {"count": 1}, msgpack.packb([{}])),
            (topic_operations.topics(), {"count": 1}, msgpack.packb([5])),
            (setting_operations.status(), {}, msgpack.packb([])),
            (requests.message("x", None), {"count": 0}, b""),
            (requests.pull("t", 0, 0, 1, 1, 0), {"count": 1, "next_offset": 0, "min_offset": 0}, b""),
        ],
    )
    def test_a_malformed_response_is_a_remote_protocol_error(
        self, operation: Operation[Any], fields: dict[str, Any], body: bytes
    ) -> None:
        with pytest.raises(RemoteProtocolError):
            operation.result(Answer(1, 0, fields, body))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: requests.pull("", 0, 0, 1, 1, 0),
            lambda: requests.pull("t", -1, 0, 1, 1, 0),
            lambda: requests.pull("t", 0, -1, 1, 1, 0),
            lambda: requests.pull("t", 0, 0, 0, 1, 0),
            lambda: requests.pull("t", 0, 0, 1, 0, 0),
            lambda: requests.pull("t", 0, 0, 1, 1, -1),
            lambda: requests.pull("t", 0, 0, 1, 1, 1.5),  # type: ignore[arg-type]  # the wrong argument is the test
            lambda: requests.pull(b"t", 0, 0, 1, 1, 0),  # type: ignore[arg-type]  # the wrong argument is the test
            lambda: requests.query_between("t", "", 0, 1, 1, None),
            lambda: requests.query_between("t", "k", 0, 1, 65, None),
            lambda: requests.commit("g", "t", {}),
            lambda: requests.commit("g", "t", {0: "1"}),  # type: ignore[dict-item]  # the wrong argument is the test
            lambda: topic_operations.create_topic("t", read_queues=0, write_queues=1),
            lambda: requests.message("", None),
        ],
    )
    def test_an_invalid_argument_is_refused_before_it_is_sent(self, make: Any) -> None:
        with pytest.raises(InvalidArgument):
            make()

    def test_the_argument_is_named(self) -> None:
        with pytest.raises(InvalidArgument, match=r"^max_count must be an integer from 1"):
            requests.pull("t", 0, 0, 0, 1, 0)

    def test_committed_offsets_are_returned_by_queue(self) -> None:
        body = struct.pack(">iqiq", 0, 5, 3, 7)
        assert requests.committed("g", "t").result(Answer(1, 0, {"count": 2}, body)) == {0: 5, 3: 7}

    def test_unknown_fields_of_a_topic_from_a_newer_broker_are_ignored(self) -> None:
        row = {"topic": "t", "read_queues": 1, "write_queues": 2, "perm": 6, "order": False, "system": False, "new": 1}
        (topic,) = topic_operations.topics().result(Answer(1, 0, {"count": 1}, msgpack.packb([row]))).values()
        assert (topic.name, topic.queues, topic.write_queues) == ("t", 1, 2)

    def test_each_operation_carries_its_command(self) -> None:
        assert requests.max_offset("t", 2).command is GET_MAX_OFFSET


class TestErrors:
    def test_every_error_is_exported(self) -> None:
        from flintmq.client import errors as client_errors
        from flintmq.protocol import errors as protocol_errors

        for module in (client_errors, protocol_errors):
            for name, value in vars(module).items():
                if isinstance(value, type) and issubclass(value, FlintError):
                    assert getattr(flintmq.client, name) is value
                    assert name in vars(flintmq.client)["__all__"]

    @pytest.mark.parametrize(
        "error",
        [
            flintmq.client.InvalidMessage("why"),
            flintmq.client.InvalidArgumentType("why"),
            flintmq.client.DeliveryFailed({1: SystemBusy("busy", retry_after_ms=5)}, [None, None]),
            flintmq.client.ForkedClient("why"),
        ],
    )
    def test_errors_survive_copying_and_pickling(self, error: FlintError) -> None:
        for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (type(again), str(again)) == (type(error), str(error))

    def test_backoff_is_at_least_what_the_broker_asks_for(self) -> None:
        assert backoff_seconds(1, SystemBusy("", retry_after_ms=700)) >= 0.7
        assert backoff_seconds(1) < 0.03
        assert backoff_seconds(10_000) <= 1.2

    def test_only_errors_that_can_succeed_later_are_retriable(self) -> None:
        assert is_retriable(SystemBusy(""))
        assert is_retriable(flintmq.client.ConnectionFailed(""))
        assert not is_retriable(TopicNotExist(""))
        assert not is_retriable(RemoteProtocolError(""))


def test_importing_the_client_imports_no_package_but_msgpack() -> None:
    script = (
        "import sys; before = set(sys.modules); from flintmq.client import *; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    # Python 3.15 itself does not list the second name: a module that a distributor may add to the standard library.
    imported = set(done.stdout.split()) - {*sys.stdlib_module_names, "_missing_stdlib_info"}
    # msgpack is built with Cython, whose runtime creates modules; the import hook belongs to an editable install.
    assert {name for name in imported if "cython" not in name and "editable" not in name} == {"flintmq", "msgpack"}


def test_every_exported_name_exists() -> None:
    for name in vars(flintmq.client)["__all__"]:
        assert getattr(flintmq.client, name).__name__ == name
    assert set(vars(flintmq.client)["__all__"]) <= set(dir(flintmq.client))
    with pytest.raises(AttributeError, match="Prodcer"):
        flintmq.client.Prodcer  # type: ignore[attr-defined] # noqa: B018


def test_no_module_of_the_core_imports_sockets_or_threads() -> None:
    core = [module for name, module in sys.modules.items() if name.startswith("flintmq.client.core.")]
    assert len(core) > 10
    for module in core:
        for forbidden in ("socket", "threading", "select", "asyncio"):
            assert not hasattr(module, forbidden), f"{module.__name__} imports {forbidden}"
