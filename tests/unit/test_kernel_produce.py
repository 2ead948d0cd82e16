"""The produce kernel, rule by rule: the frames it refuses and why, and that a refused frame leaves no trace."""

from __future__ import annotations

import dataclasses

import pytest

from flintmq.broker.kernels import produce as plan
from flintmq.broker.store import common_properties
from flintmq.protocol.errors import MessageIllegal
from flintmq.protocol.storage.arrays.jit import INTERPRETED
from tests.twins.frames import PREFIX
from tests.twins.produce import COLUMNS, FILE_BASE, Batch, Refused, judge, produce

SOUND = b"\x92\xc4\x05hello\x81\xa4TAGS\xa2eu"
TWO_ROWS = SOUND + b"\x94\xc4\x00\x80\xd1\x01\x00\xff"
TWO_COLUMNS = b"\x92\xc4\x05hello\xc4\x00\x92\xa3o-1\xc0"


def test_a_message_becomes_the_specified_record() -> None:
    batch = Batch(SOUND, 1, common=b"C\x01c\x02", unique_prefix=PREFIX, unique_first=0x4C4B400000)
    call = produce(batch)
    assert (call.status, call.message) == (plan.OK, 1)
    blob = call.log.bytes()[: call.position]
    # Written out by hand from the description of the format.
    assert (
        blob
        == bytes.fromhex(
            "0000009c"
            "daa320a7"
            "3610a686"
            "00000003"
            "00000000"  # size 88 + 5 + 7 + 2 + 54, magic, crc
            "00000000000003e8"
            "0000000100000000"
            "00000000"  # queue_offset, physical_offset, sys_flag
            "0000018bcfe56800"
            "7f00000100002a9f"
            "0000018bcfe5687b"
            "7f00000100002a9f"  # born, store: time and host
            "00000000"
            "0000000000000000"  # reconsume_times, prepared_transaction_offset
            "00000005"
            "68656c6c6f"
            "06"
            "6f7264657273"
            "0036"
        )
        + b"C\x01c\x02TAGS\x01eu\x02UNIQ_KEY\x017F00000104D2A1B2C3D4004C4B400000\x02"
    )
    assert call.offsets(1) == [FILE_BASE]


@pytest.mark.parametrize("frame", [Batch(TWO_ROWS, 2), Batch(TWO_COLUMNS, 2, COLUMNS)], ids=["rows", "columns"])
def test_the_twin_agrees_on_a_frame_with_any_changed_byte(frame: Batch) -> None:
    for at in range(len(frame.body)):
        for byte in range(at % 16, 256, 16) if INTERPRETED else range(256):
            changed = bytearray(frame.body)
            changed[at] = byte
            batch = dataclasses.replace(frame, body=bytes(changed))
            call = produce(batch, file_bytes=512)
            assert call.intact
            records = judge(batch)
            if isinstance(records, Refused):
                assert (call.status, call.message) == (records.status, records.message), (at, byte)
                assert call.nothing_written
                continue
            assert (call.status, call.message) == (plan.OK, 2), (at, byte)
            first = records[0].encode()
            assert call.log.bytes()[4:28] == first[4:28]
            assert call.log.bytes()[len(first)] == 0


@pytest.mark.parametrize(
    "value", ["x" * 31_741, "é" * 15_871, "日" * 32_700], ids=["ASCII", "two bytes", "three bytes"]
)
def test_common_properties_longer_than_a_message_may_have_are_refused(value: str) -> None:
    with pytest.raises(MessageIllegal, match="at most 31,743 are allowed"):
        common_properties(f"A\x01{value}\x02")
    common_properties(f"A\x01{'é' * 15_870}\x02")
