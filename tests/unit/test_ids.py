"""The two forms of a message id."""

from __future__ import annotations

import datetime
import time

import pytest

from flintmq.protocol.storage.record import (
    UNIQUE_COUNTER_MAX,
    UNIQUE_PREFIX_DIGITS,
    encode_host,
    offset_id,
    parse_offset_id,
    unique_counter_start,
    unique_key,
    unique_prefix,
)


def test_an_offset_id_is_the_advertised_address_and_the_physical_offset() -> None:
    host = encode_host("192.168.1.2", 10911)
    assert offset_id(host, 0x1234) == "C0A80102" + "00002A9F" + "0000000000001234"
    assert parse_offset_id("C0A8010200002A9F0000000000001234") == (("192.168.1.2", 10911), 0x1234)


def test_an_offset_id_of_an_ipv6_broker_has_56_digits() -> None:
    message_id = offset_id(encode_host("2001:db8::1", 10911), 2**62)
    assert message_id == "20010DB8000000000000000000000001" + "00002A9F" + "4000000000000000"
    assert parse_offset_id(message_id) == (("2001:db8::1", 10911), 2**62)


def test_digits_may_be_of_either_case() -> None:
    assert parse_offset_id("c0a8010200002a9f00000000000000ff") == (("192.168.1.2", 10911), 255)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "order-1",
        "C0A8010200002A9F000000000000123",  # one digit short
        "C0A8010200002A9F00000000000012345",
        "C0A8010200002A9F000000000000123G",
        "C0A8010200002A9FFFFFFFFFFFFFFFFF",  # a negative offset
        " " * 32,  # white space, which bytes.fromhex skips
        "C0A80102 00002A9F 00000000001234",
        "C0A8010200002A9F0000000000001234" + " " * 24,  # 56 characters, 32 digits
        "0x" + "0" * 30,
        "٠" * 32,  # digits, but not ASCII
        "\0" * 32,
        "é" * 56,
    ],
)
def test_an_invalid_offset_id_is_none_never_an_error(text: str) -> None:
    assert parse_offset_id(text) is None


def test_a_unique_key_is_prefix_and_counter_in_upper_case_hex() -> None:
    prefix = unique_prefix(bytes((192, 168, 1, 2)), 0x12345, b"seed")
    assert len(prefix) == UNIQUE_PREFIX_DIGITS
    assert prefix.startswith("C0A80102" + "2345")
    assert unique_key(prefix, 0xABC) == prefix + "000000000ABC"
    assert unique_key(prefix, UNIQUE_COUNTER_MAX + 5) == prefix + "000000000005"
    assert len(unique_key(prefix, UNIQUE_COUNTER_MAX - 1)) == 32


def test_a_prefix_takes_four_bytes_of_any_address() -> None:
    assert unique_prefix(b"", 1, b"").startswith("00000000" + "0001")
    assert unique_prefix(bytes(range(16)), 1, b"").startswith("00010203" + "0001")


def test_two_producers_of_one_process_have_different_prefixes() -> None:
    assert unique_prefix(b"abcd", 1, b"first") != unique_prefix(b"abcd", 1, b"second")


def _time_in(key: str, now: datetime.datetime) -> datetime.datetime:
    """Return the time at which a key was made, as RocketMQ's ``MessageClientIDSetter.getNearlyTimeFromID`` does."""
    month_start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return month_start + datetime.timedelta(milliseconds=int(key[20:28], 16))


@pytest.mark.parametrize("day", [1, 15, 31])
def test_the_time_in_a_key_is_when_its_producer_was_made(day: int) -> None:
    made = datetime.datetime(2026, 1, day, 13, 14, 15, 678_000).astimezone()
    key = unique_key("00" * 10, unique_counter_start(made.timestamp()) + 70_000)
    assert made <= _time_in(key, made) <= made + datetime.timedelta(milliseconds=2)


def test_a_producer_started_later_counts_from_higher_up_within_a_month() -> None:
    month_start = time.mktime((2026, 5, 1, 0, 0, 0, 0, 0, -1))
    starts = [unique_counter_start(month_start + seconds) for seconds in (0, 0.01, 1, 86_400, 30 * 86_400)]
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    assert starts[-1] < UNIQUE_COUNTER_MAX
