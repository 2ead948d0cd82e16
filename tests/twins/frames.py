"""PRODUCE frames for Hypothesis: sound ones in every msgpack form, and ways to break them.

Contents are drawn; the forms of the values and the places of damage follow from one drawn seed, which is much faster.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from hypothesis import strategies as st

from flintmq.protocol.storage.record import COMMON_ONLY_PROPERTIES, FORBIDDEN_PROPERTIES, FORBIDDEN_PROPERTY_PREFIX

from .produce import COLUMNS, HOST, HOST_V6, ROWS, Batch, Message
from .wire import (
    NIL,
    NOT_A_BIN,
    NOT_A_MAP,
    NOT_A_STR,
    NOT_AN_ARRAY,
    NOT_AN_INT,
    Packer,
    array_heads,
    int_forms,
    map_heads,
)

PREFIX = b"7F00000104D2A1B2C3D4"
I32 = st.integers(-(2**31), 2**31 - 1)
seeds = st.integers(0, 2**32 - 1)

clean_text = st.one_of(
    st.sampled_from([b"a", b"o-1", b"eu", b"12345678", b"two words", b"x" * 31, b"x" * 32, b"y" * 255, b"z" * 256]),
    st.sampled_from(["é", "日本語", "a😀b", "seven c\u0080", "\U0010ffff" * 9]).map(str.encode),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=9).map(
        str.encode
    ),
)
known_names = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"WAIT", b"UNIQ_KEZ", b"DELAX", b"KEYS2", b"INNER_NUN"])
clean_names = st.one_of(known_names, clean_text)
harmless_delays = st.sampled_from([b"0", b"-1", b"-0", b"+0", b"000000000", b"-999999999"])
clean_pairs = st.one_of(
    st.tuples(clean_names, clean_text),
    st.tuples(known_names, clean_text),
    st.tuples(st.just(b"DELAY"), harmless_delays),
)

pieces = [b"a", b"seven c", b"\x01", b"\x02", b"\xe9", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf0\x9f"]
rough_bytes = st.one_of(
    st.binary(max_size=12), st.lists(st.sampled_from(pieces), max_size=4).map(b"".join), st.just(b"")
)
refused_names = st.sampled_from(
    [name.encode() for name in FORBIDDEN_PROPERTIES + COMMON_ONLY_PROPERTIES]
    + [FORBIDDEN_PROPERTY_PREFIX.encode() + tail for tail in (b"", b"X", b"\xc3\xa9")]
)
any_delays = st.one_of(
    st.integers(-5, 25).map(lambda level: b"%d" % level),
    st.sampled_from(
        [b"+1", b"1 ", b"0x1", b"1.0", b"-", b"+", b"--1", b"1234567890", b"0000000001", b"\xd9\xa1", b"true"]
    ),
    st.text("+-0123456789a", max_size=12).map(str.encode),
)
any_pairs = st.one_of(
    clean_pairs,
    st.tuples(refused_names, clean_text),
    st.tuples(st.just(b"DELAY"), any_delays),
    st.tuples(rough_bytes, clean_text),
    st.tuples(clean_names, rough_bytes),
)
"""Properties that a producer may set, may not set, or cannot set."""


def messages(pairs: st.SearchStrategy[tuple[bytes, bytes]]) -> st.SearchStrategy[Message]:
    """Draw a message in rows."""
    bodies = st.one_of(st.binary(max_size=20), st.sampled_from([b"b" * 255, b"b" * 256]))
    flags = st.one_of(st.just(0), I32)
    return st.builds(Message, bodies, st.lists(pairs, max_size=4), flags, flags)


def pack_row(packer: Packer, message: Message) -> bytes:
    """Pack a message as one row; trailing flags that are 0 may be left out."""
    items = [packer.bin(message.body), packer.map(message.properties)]
    integers = [message.sys_flag, message.flag]
    while integers and not integers[-1] and packer.choose([b"leave out", b"write"]) == b"leave out":
        integers.pop()
    return packer.array(items + [packer.int(value) for value in integers])


def pack_columns(packer: Packer, bodies: Sequence[bytes], keys: Sequence[bytes]) -> bytes:
    """Pack the two columns; an empty key is nil."""
    encoded_keys = [packer.str(key) if key else NIL for key in keys]
    return packer.array([packer.bin(body) for body in bodies]) + packer.array(encoded_keys)


def header(seed: int) -> Batch:
    """Draw a batch without messages and with arbitrary values in its header."""
    chance = random.Random(seed)
    return Batch(
        body=b"",
        count=0,
        sys_flag=chance.choice([0, 1, 0x703, -1, 2**31 - 1, -(2**31), chance.getrandbits(31)]),
        common=chance.choice([b"", b"", b"TAGS\x01eu\x02", b"A\x01\xc3\xa9\x02KEYS\x01k 1\x02", b"UNIQ_KEY\x01u\x02"]),
        unique_prefix=chance.choice([b"", PREFIX]),
        unique_first=chance.choice([0, 2**48 - 1, 2**48 - 2, chance.getrandbits(48)]),
        topic=chance.choice([b"t", b"orders", b"%RETRY%group", b"x" * 127]),
        queue_id=chance.choice([0, 3, 65_535]),
        queue_offset=chance.choice([0, 1, chance.getrandbits(62)]),
        born_ms=chance.choice([0, -1, 2**63 - 1, chance.getrandbits(63)]),
        store_ms=chance.choice([0, 1, 2**63 - 1, chance.getrandbits(63)]),
        born_host=chance.choice([HOST, HOST_V6]),
        store_host=chance.choice([HOST, HOST_V6]),
        checksum=chance.choice([False, True]),
    )


@st.composite
def batches(draw: st.DrawFn, pairs: st.SearchStrategy[tuple[bytes, bytes]] = clean_pairs, max_count: int = 3) -> Batch:
    """Draw a frame in one of the layouts, sound as long as ``pairs`` are."""
    batch = header(draw(seeds))
    packer = Packer(draw(seeds))
    batch.layout = draw(st.sampled_from([ROWS, COLUMNS]))
    if batch.layout == ROWS:
        rows = draw(st.lists(messages(pairs), min_size=1, max_size=max_count))
        batch.count = len(rows)
        batch.body = b"".join(pack_row(packer, row) for row in rows)
    else:
        keys = st.one_of(st.just(b""), pairs.map(lambda pair: pair[1]))
        items = draw(st.lists(st.tuples(st.binary(max_size=9), keys), min_size=1, max_size=2 * max_count))
        many = draw(st.sampled_from([1, 1, 1, 16]))
        batch.count = len(items) * many
        batch.body = pack_columns(packer, [body for body, _ in items] * many, [key for _, key in items] * many)
    return batch


MARKERS = [bytes([byte]) for byte in range(0x80, 0x100)]


def tampered(batch: Batch, seed: int) -> Batch:
    """Return the frame with a modification: truncated, extended, another count or layout, changed bytes."""
    chance = random.Random(seed)
    body = batch.body
    at = chance.randrange(len(body) + 1)
    match chance.choice(["cut", "more", "count", "layout"] + 6 * ["bytes"]):
        case "cut":
            return dataclasses.replace(batch, body=body[:at])
        case "more":
            return dataclasses.replace(batch, body=body + chance.randbytes(chance.randint(1, 4)))
        case "count":
            return dataclasses.replace(batch, count=max(batch.count + chance.choice([-2, -1, 1, 2, 50]), 1))
        case "layout":
            return dataclasses.replace(batch, layout=1 - batch.layout)
    inserted = chance.choice(
        [b"", chance.randbytes(1), chance.randbytes(2), chance.choice(MARKERS), chance.choice(NOT_A_BIN)]
    )
    return dataclasses.replace(batch, body=body[:at] + inserted + body[at + chance.choice([len(inserted), 0, 1, 2]) :])


class IllTyped:
    """Packs frames in which any value may have another type, and any count may be wrong; all follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.packer = Packer(seed)
        self.random = random.Random(seed)

    def often(self, sound: bytes, wrong: Sequence[bytes]) -> bytes:
        """Return the sound value eleven times out of twelve."""
        return self.random.choice(wrong) if self.random.randrange(12) == 0 else sound

    def lie(self, count: int) -> int:
        return max(count + self.random.choice([0] * 10 + [1, -1]), 0)

    def row(self, message: Message) -> bytes:
        properties = self.often(self.packer.choose(map_heads(self.lie(len(message.properties)))), NOT_A_MAP)
        for name, value in message.properties:
            properties += self.often(self.packer.str(name), NOT_A_STR) + self.often(self.packer.str(value), NOT_A_STR)
        items = [self.often(self.packer.bin(message.body), NOT_A_BIN), properties]
        wrong = NOT_AN_INT + int_forms(2**31) + int_forms(-(2**31) - 1) + int_forms(2**63)
        for flag in (message.sys_flag, message.flag, message.flag)[: self.random.choice([0, 1, 2, 2, 2, 3])]:
            items.append(self.often(self.packer.int(flag), wrong))
        head = self.packer.choose(array_heads(self.lie(len(items))))
        return self.often(head, NOT_AN_ARRAY) + b"".join(items)

    def columns(self, bodies: Sequence[bytes], keys: Sequence[bytes]) -> bytes:
        """Pack two columns."""
        wrong_keys = [*NOT_A_STR, b"\xa0", b"\xd9\x00", b"\xa1\x01", b"\xa1\x02", b"\xa1\xff"]
        encoded = [
            [self.often(self.packer.bin(body), NOT_A_BIN) for body in bodies],
            [self.often(self.packer.str(key) if key else NIL, wrong_keys) for key in keys],
        ]
        return b"".join(
            self.often(self.packer.choose(array_heads(self.lie(len(column)))), NOT_AN_ARRAY) + b"".join(column)
            for column in encoded
        )


def ill_typed(rows: Sequence[Message], layout: int, seed: int) -> Batch:
    """Return the messages as a frame in which any value may have another type, and any count may be wrong."""
    maker = IllTyped(seed)
    batch = dataclasses.replace(header(seed), count=len(rows), layout=layout)
    if layout == ROWS:
        batch.body = b"".join(maker.row(row) for row in rows)
    else:
        keys = [row.properties[0][1] if row.properties else b"" for row in rows]
        batch.body = maker.columns([row.body for row in rows], keys)
    return batch


_NOISE = [*NOT_A_BIN, *NOT_A_MAP, b"\x92", b"\xc4\x01x", b"\x80", b"\x81\xa1a\xa1b", b"\xdd\x00\x00\x00\x02"]
noise = st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(_NOISE), max_size=9).map(b"".join))
random_frames = st.builds(
    lambda seed, body, count, layout: dataclasses.replace(header(seed), body=body, count=count, layout=layout),
    seeds,
    noise,
    st.integers(1, 3),
    st.sampled_from([ROWS, COLUMNS]),
)
