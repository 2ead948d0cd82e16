"""Checks within one index file: header, order of the entries, and the chains of the slots."""

from __future__ import annotations

import numpy as np

from ...protocol.storage.layout import INDEX_ENTRY_BYTES, INDEX_HEADER, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES
from ..kernels import index as kernel
from ..store.index.index_file import IndexFile
from .findings import Findings


def check_file(file: IndexFile, findings: Findings, *, clean: bool) -> None:
    """Check one file. ``clean``: the broker stopped in order, so no update may be incomplete.

    A wrong entry count is corrected in the private map, for later checks of the file.
    """
    before = findings.total
    if clean or not 0 <= file.index_count <= file.entries:
        _set_count_right(file, findings)
    if file.index_count <= 1:
        return
    # The map is private: corrections by the kernel stay in this process.
    result = kernel.check(file.array(), file.slots, file.entries, np.zeros(file.slots, np.int32))
    begins_right = file.header.begin_physical_offset == file.all_entries[1]["physical_offset"]
    if result == kernel.DAMAGED or not begins_right or (result == kernel.REPAIRED and clean):
        # The first map has the kernel's corrections; the places of the damage are looked for in an untouched one.
        fresh = IndexFile(file.files, file.path, file.files.open(file.path), file.slots, file.entries)
        fresh.index_count = file.index_count
        _find_damage(fresh, findings)
        fresh.close()
        assert findings.total > before, f"{file.path}: damage without a place"


def _set_count_right(file: IndexFile, findings: Findings) -> None:
    """Compare the header's count with the entries: a used one has a physical offset or a hash, an unused one is all
    zeros."""
    entries = file.all_entries
    count = file.index_count
    ends_there = 0 <= count <= file.entries and (count == file.entries or not entries[count]["key_hash"])
    if ends_there and (count <= 1 or entries[count - 1]["key_hash"]):
        return
    used = np.flatnonzero((entries["key_hash"] != 0) | (entries["physical_offset"] != 0))
    # RocketMQ counts from 1, because entry 0 is never used.
    file.index_count = int(used[-1]) + 1 if len(used) else 1
    if file.index_count != max(count, 1):
        findings.add(
            "index-header",
            file.path,
            f"index_count is {count:,}, but {file.index_count - 1:,} entries are there",
            position=INDEX_HEADER.at["index_count"],
        )


def _find_damage(file: IndexFile, findings: Findings) -> None:
    """Report where slots and chains contradict the entries. Sorts all entries by slot."""
    used = file.all_entries[1 : file.index_count]
    hashes, offsets = used["key_hash"].astype(np.int64), used["physical_offset"].astype(np.int64)
    for number in np.flatnonzero(hashes < 0).tolist():
        _add(file, number + 1, f"has the hash {hashes[number]:,}, which no key can have", findings)
    for number in np.flatnonzero(offsets[1:] < offsets[:-1]).tolist():
        text = f"points at physical offset {offsets[number + 1]:,}, the one before it at {offsets[number]:,}"
        _add(file, number + 2, text, findings)
    slots = np.abs(hashes) % file.slots
    # Each entry links to the one before it in its slot, the first one to 0. ``used`` begins with entry 1.
    order = np.argsort(slots, kind="stable")
    same_slot = np.diff(slots[order]) == 0
    expected = np.zeros(len(used), np.int64)
    expected[order[1:][same_slot]] = order[:-1][same_slot] + 1
    for number in np.flatnonzero(used["previous"] != expected).tolist():
        text = f"links to entry {used[number]['previous']:,} instead of {expected[number]:,}"
        _add(file, number + 1, text, findings)
    _check_slots(file, slots, findings)
    _check_header(file, slots, offsets, findings)


def _check_slots(file: IndexFile, slots: np.ndarray, findings: Findings) -> None:
    heads = np.zeros(file.slots, np.int64)
    heads[slots] = np.arange(1, len(slots) + 1)  # the last one of a slot wins
    held = np.frombuffer(file.array(), ">i4", file.slots, INDEX_HEADER_BYTES)
    for slot in np.flatnonzero(held != heads).tolist():
        findings.add(
            "index-chain",
            file.path,
            f"slot {slot:,} leads to entry {held[slot]:,} instead of {heads[slot]:,}",
            position=INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slot,
        )


def _check_header(file: IndexFile, slots: np.ndarray, offsets: np.ndarray, findings: Findings) -> None:
    heads = np.frombuffer(file.array(), ">i4", file.slots, INDEX_HEADER_BYTES)
    # Wrong entries or slots are reported on their own, so a count that fits either is accepted.
    slot_counts = (len(np.unique(slots)), int(np.count_nonzero(heads)))
    for name, expected in (
        ("begin_physical_offset", (int(offsets[0]),)),
        ("end_physical_offset", (int(offsets[-1]),)),
        ("hash_slot_count", slot_counts),
    ):
        held = getattr(file.header, name)
        if held not in expected:
            findings.add(
                "index-header",
                file.path,
                f"{name} is {held:,} instead of {expected[0]:,}",
                position=INDEX_HEADER.at[name],
            )


def _add(file: IndexFile, number: int, text: str, findings: Findings) -> None:
    position = file.entries_at + INDEX_ENTRY_BYTES * number
    findings.add("index-chain", file.path, f"entry {number:,} {text}", position=position)
