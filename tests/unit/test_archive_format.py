"""The archive's format: what is written is read again, and no damage goes unnoticed."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest

from flintmq.protocol.storage.archive.checked import pack_checked
from flintmq.protocol.storage.archive.errors import CorruptObject, UnknownFormat
from flintmq.protocol.storage.archive.fragment import (
    FRAME_BYTES,
    Compression,
    FragmentName,
    QueueUnits,
    check_units,
    decode_frame,
    decode_head,
    decode_index,
    encode_frames,
    encode_index,
    frames_of,
    head_end,
    parse_name,
    pieces_in,
    stored_range,
)
from flintmq.protocol.storage.archive.keys import (
    BLOCK_ENTRIES,
    block_of,
    block_range,
    blocks_in,
    decode_blocks,
    encode_run,
    key_hash,
    positions_of,
    run_bytes,
    sorted_entries,
    xxh64,
)
from flintmq.protocol.storage.archive.manifest import (
    GROUP_ENTRIES,
    ArchiveGap,
    ArchiveManifest,
    Entry,
    Group,
    Identity,
    KeyRun,
    decode_group,
    decode_identity,
    decode_manifest,
    encode_group,
    encode_identity,
    encode_manifest,
    overlapping,
    topic_bits,
    topics_in,
)

RANDOM = np.random.default_rng(7)
PIECES = [(1_000, bytes(range(256)) * 9_000), (5_000_000, RANDOM.bytes(FRAME_BYTES)), (5_000_000 + FRAME_BYTES, b"end")]
QUEUES = [
    QueueUnits("orders", 0, 7, RANDOM.bytes(60), 1_700_000_000_000, 1_700_000_000_009),
    QueueUnits("orders", 3, 0, RANDOM.bytes(20), 1_700_000_000_001, 1_700_000_000_001),
    QueueUnits("Überweisung", 0, 2**40, RANDOM.bytes(40), 5, 6),
]
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "none")
ENTRY = Entry(0, 10, 3, "ab" * 8, 10, 9, 8, b"l" * 32, b"i" * 32, 77, 1, 2, 1, 2, b"\x05")


def a_fragment(compression: Compression) -> tuple[bytearray, bytes]:
    """Return the two objects of a fragment with a hole between its frames."""
    log, frames = encode_frames(PIECES, compression)
    keys = sorted_entries(RANDOM.integers(0, 2**64, 5_000, np.uint64), RANDOM.integers(0, 2**40, 5_000, np.int64))
    return log, encode_index(1_000, 7_000_000, compression, frames, QUEUES, keys, 6, [(2_000, 2_100)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_xxh64(text: bytes, value: int) -> None:
    assert xxh64(text) == value


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_fragment_is_read_as_it_was_written(compression: Compression) -> None:
    log, idx = a_fragment(compression)
    index = decode_index(idx, "x.idx")
    assert list(pieces_in(log, index, "x.log")) == [
        (1_000, PIECES[0][1][:FRAME_BYTES]),
        (1_000 + FRAME_BYTES, PIECES[0][1][FRAME_BYTES : 2 * FRAME_BYTES]),
        (1_000 + 2 * FRAME_BYTES, PIECES[0][1][2 * FRAME_BYTES :]),
        *PIECES[1:],
    ]
    assert index.head == decode_head(idx[: head_end(idx[:12], "x.idx")], "x.idx")
    assert (index.head.start, index.head.end, index.head.records) == (1_000, 7_000_000, 6)
    assert index.head.quarantined == [(2_000, 2_100)]
    for row, held in enumerate(QUEUES):
        run = index.queues[row]
        assert index.head.topics[run["topic"]] == held.topic
        assert (int(run["queue_id"]), int(run["first"])) == (held.queue_id, held.first)
        assert bytes(index.units_of(row)) == held.units
        check_units(index.units_of(row), run, "x.idx")


def test_a_range_of_the_log_needs_only_its_frames() -> None:
    log, idx = a_fragment("zstd")
    index = decode_index(idx, "x.idx")
    chosen = frames_of(index.frames, 5_000_000 + FRAME_BYTES - 1, 5_000_000 + FRAME_BYTES + 1)
    begin, end = stored_range(chosen)
    raw = b"".join(
        decode_frame(log[int(each["at"]) : int(each["at"]) + int(each["stored_bytes"])], each, "zstd", "x.log")
        for each in chosen
    )
    assert raw == PIECES[1][1] + b"end"
    assert end - begin < len(log)
    assert not len(frames_of(index.frames, 4_000_000, 4_000_001))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_flipped_bit_and_no_cut_goes_unnoticed(compression: Compression) -> None:
    log, idx = a_fragment(compression)
    head = decode_head(idx, "x.idx")
    index = decode_index(idx, "x.idx")
    ends = [head.range_of(part)[1] for part in head.parts]
    places = {0, 8, 11, 12, head.parts_at - 5, head.parts_at - 1, head.parts_at, *(end - 1 for end in ends)}
    for at in sorted(places):
        with pytest.raises(CorruptObject, match=r"x\.idx"):
            decode_index(flipped(idx, at), "x.idx")
    for end in (0, 11, 12, head.parts_at - 1, *(end - 1 for end in ends)):
        with pytest.raises(CorruptObject, match=r"x\.idx"):
            decode_index(idx[:end], "x.idx")
    for at in (0, len(log) // 2, len(log) - 1):
        with pytest.raises(CorruptObject, match=r"x\.log"):
            list(pieces_in(flipped(log, at), index, "x.log"))
    with pytest.raises(CorruptObject, match=r"x\.log"):
        list(pieces_in(log[:-1], index, "x.log"))
    with pytest.raises(CorruptObject, match="queue offset 7"):
        check_units(flipped(bytes(index.units_of(0)), 3), index.queues[0], "x.idx")


def flipped(blob: bytes | bytearray, at: int) -> bytes:
    return bytes(blob[:at]) + bytes([blob[at] ^ 0x10]) + bytes(blob[at + 1 :])


def test_a_frame_that_states_another_size_is_refused_before_it_is_decompressed() -> None:
    log, frames = encode_frames([(0, bytes(FRAME_BYTES))], "zstd")
    _, _, at, stored, crc = frames[0]
    index = decode_index(encode_index(0, 9, "zstd", [frames[0]._replace(raw_bytes=9)], [], empty(), 1, []), "x.idx")
    with pytest.raises(CorruptObject):
        decode_frame(log[at : at + stored], index.frames[0], "zstd", "x.log")
    assert zlib.crc32(log) == crc & 0xFFFFFFFF


def empty() -> np.ndarray:
    return sorted_entries(np.zeros(0, np.uint64), np.zeros(0, np.int64))


def test_names_of_fragments_are_read_again_and_others_are_none() -> None:
    name = FragmentName(7, 0, 2**40, "00ff" * 4)
    assert name.log == "log/0000000007/00000000000000000000-00000001099511627776-00ff00ff00ff00ff.log"
    assert parse_name(name.log) == parse_name(name.idx) == name
    for other in ("archive.json", name.log + "x", "x" + name.log, name.log.replace("log/", "log/+")):
        assert parse_name(other) is None


@pytest.mark.parametrize("count", [0, 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, 10 * BLOCK_ENTRIES + 5])
def test_a_key_is_found_in_the_block_that_is_computed_or_in_one_beside_it(count: int) -> None:
    hashes = np.array([key_hash("orders", f"k{number}") for number in range(min(count, 50))], np.uint64)
    hashes = np.concatenate([hashes, RANDOM.integers(0, 2**64, count - len(hashes), np.uint64)])
    entries = sorted_entries(hashes, np.arange(count, dtype=np.int64))
    run = encode_run(entries)
    assert len(run) == run_bytes(count)
    assert np.array_equal(decode_blocks(run, "x"), entries)
    for number in range(min(count, 50)):
        wanted = key_hash("orders", f"k{number}")
        computed = block_of(wanted, count)
        found = []
        for block in range(max(computed - 1, 0), min(computed + 2, blocks_in(count))):
            begin, end = block_range(block, count)
            found += positions_of(wanted, decode_blocks(run[begin:end], "x"))
        assert found == [number]


def test_a_run_has_each_pair_once_in_order() -> None:
    entries = sorted_entries(np.array([5, 2**64 - 1, 5, 5], np.uint64), np.array([9, 1, 4, 9], np.int64))
    assert entries.tolist() == [(5, 4), (5, 9), (2**64 - 1, 1)]
    assert positions_of(5, entries) == [4, 9]


def a_manifest() -> ArchiveManifest:
    group = Group("groups/x.mft", 9, b"g" * 32, GROUP_ENTRIES, 0, 10, 10, 9, 8, 1, 2, 1)
    entries = [ENTRY._replace(start=start, end=start + 10) for start in (10, 20)]
    run = KeyRun("keys/x", 1, 0, 10, 5, 1, 2)
    return ArchiveManifest(
        42, "store", 3, "me", 9, 0, ["a", "b", "c"], [group], entries, [run], [ArchiveGap(30, 40, "retention")]
    )


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = a_manifest()
    assert decode_manifest(encode_manifest(manifest), manifest.name) == manifest
    assert manifest.name == "manifest/00000000000000000042.mft"
    assert manifest.end == 40
    assert manifest.totals() == (GROUP_ENTRIES + 2, 30, 51, 3)
    assert manifest.next(gaps=[]).version == 43
    assert manifest.next(gaps=[]).end == 30
    assert list(overlapping(manifest.entries, 19, 20)) == manifest.entries[:1]
    assert topics_in(ENTRY.topics, manifest.topics) == ["a", "c"]


def test_topics_of_a_fragment_are_bits_over_the_list_that_grows() -> None:
    table = [f"t{number}" for number in range(8)]
    bits = topic_bits(["new", "t0"], table)
    assert (bits, table[-1]) == (b"\x01\x01", "new")
    assert topics_in(bits, table) == ["t0", "new"]


def test_a_group_is_read_as_it_was_written() -> None:
    entries = [ENTRY, ENTRY._replace(start=10, end=20)]
    assert decode_group(encode_group(entries, ["a", "b"]), "g") == (entries, ["a", "b"])


def test_the_identity_is_read_as_it_was_written_and_a_change_is_noticed() -> None:
    identity = Identity("0123", "", 1 << 30, 9)
    blob = encode_identity(identity)
    assert decode_identity(blob) == identity
    for damaged in (blob.replace(b"0123", b"0124"), blob[:-1], b"[]", b"\xff"):
        with pytest.raises(CorruptObject, match=r"archive\.json"):
            decode_identity(damaged)


@pytest.mark.parametrize(
    ("blob", "decode"),
    [(encode_manifest(a_manifest()), decode_manifest), (encode_group([ENTRY], ["a"]), decode_group)],
    ids=["manifest", "group"],
)
def test_damage_of_a_list_is_noticed_everywhere(blob: bytes, decode: Callable[[bytes, str], object]) -> None:
    for at in range(len(blob)):
        with pytest.raises(CorruptObject, match="name"):
            decode(flipped(blob, at), "name")
        with pytest.raises(CorruptObject, match="name"):
            decode(blob[:at], "name")


@pytest.mark.parametrize(
    ("magic", "decode"), [(b"FLINTMFT", decode_manifest), (b"FLINTGRP", decode_group), (b"FLINTIDX", decode_head)]
)
@pytest.mark.parametrize("value", [{"format": 2}, {}, {"format": 1}])
def test_a_newer_format_is_said_to_be_one(
    magic: bytes, decode: Callable[[bytes, str], object], value: dict[str, object]
) -> None:
    with pytest.raises(UnknownFormat, match="newer"):
        decode(pack_checked(magic, value), "name")
