"""The slave's side of RocketMQ's HA protocol: pieces that end anywhere, heartbeats, and masters that lie."""

from __future__ import annotations

import struct

import pytest

from flintmq.broker.migration.ha_connection import (
    FEED_BYTES_MAX,
    PIECE_BYTES_MAX,
    RECORD_BYTES_MAX,
    HaReceiver,
    HaStreamError,
    encode_report,
)

SIZES = (120, 91, 4000, 8, 300)
LOG = b"".join(size.to_bytes(4, "big") + bytes([number + 1]) * (size - 4) for number, size in enumerate(SIZES))
"""Records as the codec sees them: a length, and content that it does not look at."""


def piece(offset: int, data: bytes) -> bytes:
    """Return a message of the master."""
    return struct.pack(">qi", offset, len(data)) + data


def stream(log: bytes, begin: int, piece_bytes: int) -> bytes:
    """Return the master's messages with ``log`` from ``begin`` on, in pieces, with a heartbeat after each."""
    said = b""
    for at in range(begin, len(log), piece_bytes):
        data = log[at : at + piece_bytes]
        said += piece(at, data) + piece(at + len(data), b"")
    return said


def receive(receiver: HaReceiver, said: bytes, read_bytes: int) -> bytes:
    """Feed a stream in reads of ``read_bytes``; return the records, which must follow one another."""
    received = bytearray()
    begin = -1
    for at in range(0, len(said), read_bytes):
        if (records := receiver.feed(said[at : at + read_bytes])) is not None:
            begin = records.offset if begin < 0 else begin
            assert records.offset == begin + len(received)
            received += records.data
    return bytes(received)


def test_a_report_is_the_offset_as_eight_bytes() -> None:
    assert encode_report(1 << 40) == bytes([0, 0, 1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 4, 5, 7, 90, 91, 120, 300, 1000, len(LOG)])
def test_pieces_may_end_anywhere(piece_bytes: int) -> None:
    receiver = HaReceiver(0)
    assert receive(receiver, stream(LOG, 1, piece_bytes), 1000) == LOG
    assert receiver.received_offset == len(LOG)


@pytest.mark.parametrize("read_bytes", [1, 2, 11, 12, 13, 100, 4096])
def test_reads_may_end_anywhere(read_bytes: int) -> None:
    assert receive(HaReceiver(0), stream(LOG, 1, 100), read_bytes) == LOG


def test_an_empty_log_asks_for_the_second_byte_because_zero_means_the_last_file() -> None:
    assert HaReceiver(0).first_report == 1


def test_a_log_that_ends_later_asks_for_what_follows() -> None:
    begin = SIZES[0] + SIZES[1]
    receiver = HaReceiver(begin)
    assert receiver.first_report == begin
    (records,) = [receiver.feed(stream(LOG, begin, len(LOG)))]
    assert records is not None
    assert (records.offset, bytes(records.data)) == (begin, LOG[begin:])


def test_half_a_record_is_kept_back() -> None:
    receiver = HaReceiver(0)
    records = receiver.feed(piece(1, LOG[1 : SIZES[0] + 50]))
    assert records is not None
    assert records.data == LOG[: SIZES[0]]
    assert receiver.received_offset == SIZES[0] + 50


def test_heartbeats_bring_nothing() -> None:
    receiver = HaReceiver(700)
    assert [receiver.feed(piece(700, b"")) for _ in range(3)] == [None, None, None]


@pytest.mark.parametrize("offset", [0, 2, 119, 1 << 40, -1])
@pytest.mark.parametrize("data", [b"", LOG[1:]])
def test_a_piece_or_heartbeat_for_another_offset_is_refused(offset: int, data: bytes) -> None:
    with pytest.raises(HaStreamError, match=f"offset 1 of the log .* a piece is for offset {offset:,}"):
        HaReceiver(0).feed(piece(offset, data))


@pytest.mark.parametrize("size", [-1, -(1 << 31), PIECE_BYTES_MAX + 1])
def test_a_piece_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(HaStreamError, match="a piece of"):
        HaReceiver(64).feed(struct.pack(">qi", 64, size))


@pytest.mark.parametrize("size", [0, 7, -1, RECORD_BYTES_MAX + 1])
def test_a_record_of_an_impossible_length_is_refused_as_soon_as_its_length_is_there(size: int) -> None:
    receiver = HaReceiver(500)
    assert receiver.feed(piece(500, LOG[: SIZES[0]])) is not None
    with pytest.raises(HaStreamError, match=f"offset {500 + SIZES[0]:,} of the log .* a record of {size:,} bytes"):
        receiver.feed(piece(500 + SIZES[0], struct.pack(">i", size)))


def test_the_longest_record_fits_and_the_buffer_stays_bounded() -> None:
    record = RECORD_BYTES_MAX.to_bytes(4, "big") + bytes(RECORD_BYTES_MAX - 4)
    receiver = HaReceiver(16)
    said = piece(16, record) + piece(16 + len(record), record)[: FEED_BYTES_MAX // 2]
    received = [
        records.data
        for at in range(0, len(said), FEED_BYTES_MAX)
        if (records := receiver.feed(said[at : at + FEED_BYTES_MAX])) is not None
    ]
    assert [len(data) for data in received] == [len(record)]
    assert received[0] == record


def test_the_records_before_an_impossible_length_are_taken() -> None:
    receiver = HaReceiver(500)
    records = receiver.feed(piece(500, LOG[: SIZES[0]] + bytes(100)))
    assert records is not None
    assert records.data == LOG[: SIZES[0]]
    with pytest.raises(HaStreamError, match="a record of 0 bytes"):
        receiver.feed(piece(receiver.received_offset, b""))
