"""Errors: one class for each result code, and the attributes that survive the wire and a pickle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from flintmq.protocol.errors import (
    ERRORS_BY_CODE,
    MESSAGE_CHARS_MAX,
    RESULT_NAMES,
    BrokerError,
    BrokerFailure,
    ConfigurationError,
    ConnectionFailed,
    FlintError,
    LocalProtocolError,
    MessageIllegal,
    OffsetOutOfRange,
    ProtocolError,
    RemoteProtocolError,
    RequestTimeout,
    SystemBusy,
    error_from_answer,
)
from flintmq.protocol.frames import RESPONSE, FrameParser, encode_frame

# org.apache.rocketmq.remoting.protocol.ResponseCode and RemotingSysResponseCode, 5.3.3.
ROCKETMQ_CODES = {
    "SUCCESS": 0,
    "SYSTEM_ERROR": 1,
    "SYSTEM_BUSY": 2,
    "REQUEST_CODE_NOT_SUPPORTED": 3,
    "FLUSH_DISK_TIMEOUT": 10,
    "MESSAGE_ILLEGAL": 13,
    "SERVICE_NOT_AVAILABLE": 14,
    "VERSION_NOT_SUPPORTED": 15,
    "NO_PERMISSION": 16,
    "TOPIC_NOT_EXIST": 17,
    "TOPIC_EXIST_ALREADY": 18,
    "PULL_NOT_FOUND": 19,
    "PULL_RETRY_IMMEDIATELY": 20,
    "PULL_OFFSET_MOVED": 21,
    "QUERY_NOT_FOUND": 22,
    "SUBSCRIPTION_PARSE_FAILED": 23,
    "SUBSCRIPTION_GROUP_NOT_EXIST": 26,
    "INVALID_PARAMETER": 29,
    "TRANSACTION_STATE_GROUP_WRONG": 203,
}


def every_result() -> dict[int, str]:
    return RESULT_NAMES | {code: cls.name for code, cls in ERRORS_BY_CODE.items()}


def over_the_wire(error: BrokerError) -> BrokerError:
    """Return ``error`` as the peer receives it."""
    data = encode_frame(RESPONSE, error.code, 1, error.fields())
    parser = FrameParser()
    parser.writable()[: len(data)] = data
    parser.received(len(data))
    frame = parser.next_frame()
    assert frame is not None
    return error_from_answer(frame.code, frame.fields)


def test_codes_are_rocketmqs_if_it_has_the_result() -> None:
    ours = {name: code for code, name in every_result().items()}
    shared = {name: code for name, code in ours.items() if name in ROCKETMQ_CODES}
    assert shared == ROCKETMQ_CODES
    assert all(code > 1000 for name, code in ours.items() if name not in ROCKETMQ_CODES)


def test_no_two_results_share_a_code_or_a_name() -> None:
    assert len(ERRORS_BY_CODE) + len(RESULT_NAMES) == len(every_result()) == len(set(every_result().values()))


def test_every_class_of_the_tree_below_broker_error_has_a_code_of_its_own() -> None:
    assert set(BrokerError.__subclasses__()) >= set(ERRORS_BY_CODE.values())
    assert all(ERRORS_BY_CODE[cls.code] is cls for cls in ERRORS_BY_CODE.values())
    assert {cls.__name__ for cls in ERRORS_BY_CODE.values() if cls.retriable} == {
        "SystemBusy",
        "FlushDiskTimeout",
        "NotEnoughReplicas",
        "NotPrimary",
        "ServiceNotAvailable",
    }


@pytest.mark.parametrize(
    "cls",
    [
        ConfigurationError,
        ConnectionFailed,
        ProtocolError,
        LocalProtocolError,
        RemoteProtocolError,
        RequestTimeout,
        *ERRORS_BY_CODE.values(),
    ],
)
def test_every_error_is_a_flint_error_with_its_message(cls: type[FlintError]) -> None:
    error = cls("what happened")
    assert isinstance(error, FlintError)
    assert str(error) == "what happened"


@pytest.mark.parametrize("cls", ERRORS_BY_CODE.values())
def test_an_error_survives_the_wire(cls: type[BrokerError]) -> None:
    received = over_the_wire(cls("what happened", retry_after_ms=250, limit=4096, topic="orders"))
    assert type(received) is cls
    assert str(received) == received.message == "what happened"
    assert received.retry_after_ms == 250
    assert received.details == {"limit": 4096, "topic": "orders"}
    assert received.code == cls.code
    assert received.retriable is cls.retriable


def test_an_unknown_code_becomes_a_plain_error_of_that_code() -> None:
    error = error_from_answer(7777, {"message": "from a newer broker", "why": "new"})
    assert type(error) is BrokerError
    assert (error.code, error.name, error.retriable) == (7777, "RESULT_7777", False)
    assert error.details == {"code": 7777, "why": "new"}
    assert (BrokerError.code, BrokerFailure.code) == (1, 1)
    assert over_the_wire(error).code == 7777


@pytest.mark.parametrize(
    "fields",
    [{}, {"message": 7}, {"message": None, "retry_after_ms": "soon"}, {"retry_after_ms": -5}, {"retry_after_ms": True}],
)
def test_an_answer_without_a_usable_message_still_says_something(fields: dict[str, Any]) -> None:
    error = error_from_answer(2, fields)
    assert type(error) is SystemBusy
    assert str(error) == "the broker responded with code 2"
    assert error.retry_after_ms == 0


def test_a_long_message_is_cut_so_that_the_answer_fits_a_header() -> None:
    received = over_the_wire(MessageIllegal("€" * 1_000_000))
    assert len(received.message) == MESSAGE_CHARS_MAX
    assert received.message.endswith("…")


def test_details_cannot_replace_the_message() -> None:
    error = MessageIllegal("what happened")
    error.details["message"] = "something else"
    assert over_the_wire(error).message == "what happened"


def test_offset_out_of_range_names_the_queues_range() -> None:
    error = over_the_wire(OffsetOutOfRange("beyond", min_offset=5, max_offset=2**40))
    assert isinstance(error, OffsetOutOfRange)
    assert (error.min_offset, error.max_offset) == (5, 2**40)


def test_offset_out_of_range_bears_an_answer_that_does_not_say_it() -> None:
    error = error_from_answer(OffsetOutOfRange.code, {"message": "beyond", "min_offset": (1,), "max_offset": "x"})
    assert isinstance(error, OffsetOutOfRange)
    assert (error.min_offset, error.max_offset) == (0, 0)


@pytest.mark.parametrize("duplicate", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize(
    "fields",
    [{"message": "m", "retry_after_ms": 5, "min_offset": 1}, {"message": "m", "self": 1, "args": 2, "not a name": 3}],
)
@pytest.mark.parametrize("code", [13, 21, 7777])
def test_an_error_survives_pickle_and_copy_with_any_names_of_details(
    code: int, fields: dict[str, Any], duplicate: Any
) -> None:
    error = error_from_answer(code, fields)
    error.add_note("seen in a worker")
    again = duplicate(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.code == code
