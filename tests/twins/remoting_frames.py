"""Batches of RocketMQ's clients for Hypothesis, sound or with properties of any kind."""

from __future__ import annotations

import dataclasses
import random
import struct

from hypothesis import strategies as st

from . import frames
from .produce import BATCH, BODY, Batch

_ENDS = st.sampled_from(
    [b"", b"\x02", b"\x02\x02", b"\x02\x01", b"\x02TAGS\x01\x02", b"\x02alone", b"\x02POP_CK\x011 2\x02"]
)
property_texts = st.builds(
    lambda pairs, begin, end: begin + b"\x02".join(name + b"\x01" + value for name, value in pairs) + end,
    st.lists(frames.clean_pairs, max_size=4),
    st.sampled_from([b"", b"", b"\x02", b"REAL_TOPIC\x01t\x02", b"\x01v\x02"]),
    _ENDS,
)
any_property_texts = st.builds(
    lambda pairs, end: b"\x02".join(name + b"\x01" + value for name, value in pairs) + end,
    st.lists(frames.any_pairs, max_size=4),
    _ENDS,
)


def pack_message(body: bytes, text: bytes, flag: int) -> bytes:
    """Return a message of a batch. ``text``: its properties."""
    size = 22 + len(body) + len(text)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(text)) + text


@st.composite
def batches(draw: st.DrawFn, texts: st.SearchStrategy[bytes] = property_texts) -> Batch:
    """Draw a batch, sound as long as ``texts`` are."""
    drawn = draw(st.lists(st.tuples(st.binary(max_size=20), texts, frames.I32), min_size=1, max_size=4))
    head = frames.header(draw(frames.seeds))
    body = b"".join(pack_message(*message) for message in drawn)
    return dataclasses.replace(
        head, body=body, count=len(drawn), layout=BATCH, reconsume_times=draw(st.sampled_from([0, 1, 2**31 - 1]))
    )


@st.composite
def bodies(draw: st.DrawFn) -> Batch:
    """Draw a frame that is the body of one message."""
    head = frames.header(draw(frames.seeds))
    body, flag, times = draw(st.tuples(st.binary(max_size=300), frames.I32, st.integers(0, 2**31 - 1)))
    return dataclasses.replace(head, body=body, count=1, layout=BODY, flag=flag, reconsume_times=times)


def tampered(batch: Batch, seed: int) -> Batch:
    """Return the batch with a modification: truncated, extended, another count, changed bytes."""
    chance = random.Random(seed)
    body = batch.body
    at = chance.randrange(len(body) + 1)
    match chance.choice(["cut", "more", "count"] + 5 * ["bytes"]):
        case "cut":
            return dataclasses.replace(batch, body=body[:at])
        case "more":
            return dataclasses.replace(batch, body=body + chance.randbytes(chance.randint(1, 30)))
        case "count":
            return dataclasses.replace(batch, count=max(batch.count + chance.choice([-2, -1, 1, 2, 50]), 1))
    inserted = chance.choice([b"", b"\x00", b"\x01", b"\x02", b"\xff", chance.randbytes(2)])
    return dataclasses.replace(batch, body=body[:at] + inserted + body[at + chance.choice([len(inserted), 0, 1]) :])
