"""The index kernels against their plain twin: a file's content, the entries of a chain, and the detected damage."""

from __future__ import annotations

import random

from hypothesis import assume, given
from hypothesis import strategies as st

from flintmq.broker.kernels import index as kernel
from flintmq.protocol.storage.layout import INDEX_ENTRY, INDEX_HEADER
from tests.twins.arrays import SENTINELS, examples, fenced
from tests.twins.index import Index, Key, check, entry_at, file_bytes, match, put, select, slot_at

sentinels = st.sampled_from(SENTINELS)
hashes = st.one_of(st.integers(0, 12), st.integers(0, 2**31 - 1), st.sampled_from([0, 2**31 - 1]))


@st.composite
def key_lists(draw: st.DrawFn, max_size: int = 20) -> list[Key]:
    """Draw keys as reput finds them: physical offsets and times never go back."""
    physical_offset = draw(st.sampled_from([0, 1, 2**40]))
    store_ms = draw(st.sampled_from([1, 999, 1_700_000_000_000]))
    keys = []
    steps = st.tuples(hashes, st.sampled_from([0, 91, 2**33]), st.sampled_from([0, 1, 999, 1000, 61_000, 2**42]))
    for key_hash, bytes_on, ms_on in draw(st.lists(steps, min_size=1, max_size=max_size)):
        keys.append((key_hash, physical_offset, store_ms))
        physical_offset += bytes_on
        store_ms += ms_on
    return keys


@st.composite
def files(draw: st.DrawFn) -> tuple[Index, list[Key]]:
    """Draw an empty file, the first or a later one, and keys, perhaps more than fit."""
    keys = draw(key_lists())
    later = draw(st.booleans())
    begin = (max(keys[0][2] - 3_600_000, 0), keys[0][1]) if later else (0, 0)
    return Index(draw(st.sampled_from([1, 2, 7, 100])), draw(st.integers(2, 24)), *begin), keys


@given(files(), st.lists(st.integers(1, 6), max_size=4), sentinels)
@examples(200)
def test_a_file_filled_in_any_number_of_steps_has_the_specified_content(
    case: tuple[Index, list[Key]], steps: list[int], sentinel: int
) -> None:
    twin, keys = case
    file = fenced(twin.encode(), sentinel=sentinel)
    taken = twin.put(keys)
    done = 0
    for step in [*steps, len(keys)]:
        batch = keys[: min(done + step, len(keys))]
        done = put(file, twin, batch, done, sentinel)
        assert done == min(len(batch), taken)
    assert file.bytes() == twin.encode()
    assert put(file, twin, keys, len(keys), sentinel) == len(keys)
    assert check(file.bytes(), twin, sentinel) == (kernel.SOUND, file.bytes())


@given(files(), st.integers(1, 5), st.data(), sentinels)
@examples(200)
def test_a_chain_returns_the_twins_entries_newest_first(
    case: tuple[Index, list[Key]], step: int, data: st.DataObject, sentinel: int
) -> None:
    twin, keys = case
    twin.put(keys)
    blob = twin.encode()
    times = st.sampled_from([0, 2**62, *(key[2] + shift for key in keys for shift in (-1000, -1, 0, 1, 999, 1000))])
    begin_ms, end_ms = data.draw(times), data.draw(times)
    for key_hash in {key[0] for key in keys} | {5}:
        found = select(blob, twin, keys[0][2], key_hash, begin_ms, end_ms, step, sentinel)
        assert found == twin.select(key_hash, begin_ms, end_ms)


@given(files())
@examples(100)
def test_an_entry_is_found_by_its_store_time(case: tuple[Index, list[Key]]) -> None:
    twin, keys = case
    file = fenced(twin.encode())
    done = put(file, twin, keys)
    for number, (key_hash, physical_offset, store_ms) in enumerate(keys[:done], 1):
        if store_ms - keys[0][2] < 2**31 * 1000:
            found = select(file.bytes(), twin, keys[0][2], key_hash, store_ms, store_ms, 9)
            assert (physical_offset, number) in found


def _changes(blob: bytes, begin: int, end: int) -> list[bytes]:
    """Yield the file with one byte changed, for each byte of a range."""
    changed = []
    for at in range(begin, end):
        for mask in (0x01, 0x80, 0xFF):
            copy = bytearray(blob)
            copy[at] ^= mask
            changed.append(bytes(copy))
    return changed


@given(files(), sentinels)
@examples(40)
def test_every_changed_byte_of_a_slot_is_corrected_or_found(case: tuple[Index, list[Key]], sentinel: int) -> None:
    twin, keys = case
    twin.put(keys)
    blob = twin.encode()
    for slot in range(min(twin.slots, 12)):
        for damaged in _changes(blob, slot_at(slot), slot_at(slot + 1)):
            result, after = check(damaged, twin, sentinel)
            assert result in (kernel.DAMAGED, kernel.REPAIRED)
            assert after == (blob if result == kernel.REPAIRED else damaged)


@given(files(), sentinels)
@examples(40)
def test_every_changed_byte_of_an_entrys_previous_number_is_found(case: tuple[Index, list[Key]], sentinel: int) -> None:
    twin, keys = case
    twin.put(keys)
    blob = twin.encode()
    for number in range(1, len(twin.keys) + 1):
        begin = entry_at(twin.slots, number) + INDEX_ENTRY.at["previous"]
        for damaged in _changes(blob, begin, begin + 4):
            assert check(damaged, twin, sentinel)[0] == kernel.DAMAGED


@given(files(), sentinels)
@examples(30)
def test_a_changed_hash_or_offset_is_found_unless_the_file_stays_plausible(
    case: tuple[Index, list[Key]], sentinel: int
) -> None:
    twin, keys = case
    twin.put(keys)
    blob = twin.encode()
    for number, (key_hash, physical_offset, store_ms) in enumerate(list(twin.keys), 1):
        begin = entry_at(twin.slots, number)
        for damaged in _changes(blob, begin, begin + 12):
            entry = damaged[begin : begin + 12]
            other_hash, other_physical = (int.from_bytes(part, "big", signed=True) for part in (entry[:4], entry[4:]))
            before = twin.keys[number - 2][1] if number > 1 else 0
            behind = twin.keys[number][1] if number < len(twin.keys) else physical_offset
            hash_may = other_hash >= 0 and other_hash % twin.slots == key_hash % twin.slots
            offset_may = (
                before <= other_physical <= behind if number < len(twin.keys) else other_physical == physical_offset
            )
            expected = kernel.SOUND if hash_may and offset_may else kernel.DAMAGED
            assert check(damaged, twin, sentinel)[0] == expected, (number, store_ms)


@given(files(), st.data(), sentinels)
@examples(80)
def test_an_interrupted_put_is_undone(case: tuple[Index, list[Key]], data: st.DataObject, sentinel: int) -> None:
    twin, keys = case
    counted = data.draw(st.integers(0, min(len(keys), twin.entries - 1)))
    reached = data.draw(st.integers(counted, len(keys)))
    twin.put(keys[:counted])
    before = twin.encode()
    file = fenced(before, sentinel=sentinel)
    assume(put(file, twin, keys[:reached], counted, sentinel) > counted)
    # The put wrote entries and slots, and with the first entry the times and offsets of the first message, no more.
    stopped = bytearray(file.bytes())
    for name in ("end_timestamp", "end_physical_offset", "hash_slot_count", "index_count"):
        at = INDEX_HEADER.at[name]
        end = min(at + 8, INDEX_HEADER.size)
        stopped[at:end] = before[at:end]
    result, repaired = check(bytes(stopped), twin, sentinel)
    assert result == kernel.REPAIRED
    kept = slice(INDEX_HEADER.at["hash_slot_count"], entry_at(twin.slots, counted + 1))
    assert repaired[kept] == before[kept]
    assert check(repaired, twin, sentinel) == (kernel.SOUND, repaired)
    # Putting the same or other keys now makes complete chains.
    again = fenced(repaired, sentinel=sentinel)
    taken = put(again, twin, keys, counted, sentinel)
    assert taken == counted + twin.put(keys[counted:])
    assert again.bytes() == twin.encode()


@given(files(), st.integers(-(2**31), 2**31 - 1), sentinels)
@examples(60)
def test_an_impossible_entry_count_is_damage(case: tuple[Index, list[Key]], count: int, sentinel: int) -> None:
    twin, keys = case
    twin.put(keys)
    blob = bytearray(twin.encode())
    at = INDEX_HEADER.at["index_count"]
    blob[at : at + 4] = count.to_bytes(4, "big", signed=True)
    result, _ = check(bytes(blob), twin, sentinel)
    if not 1 <= count <= twin.entries:
        assert result == kernel.DAMAGED
    elif count == len(twin.keys) + 1:
        assert result == kernel.SOUND
    elif count > len(twin.keys) + 1:
        # An unwritten entry has offset 0 and no previous entry.
        assert result == kernel.DAMAGED or twin.keys[-1][1] == 0


@given(st.binary(max_size=400), st.integers(1, 5), st.integers(1, 10), st.integers(0, 2**32), sentinels)
@examples(150)
def test_random_bytes_never_cause_reads_outside_the_file(
    blob: bytes, slots: int, entries: int, seed: int, sentinel: int
) -> None:
    chance = random.Random(seed)
    twin = Index(slots, entries)
    size = file_bytes(slots, entries)
    content = bytearray(blob.ljust(size, b"\0")[:size])
    content[INDEX_HEADER.at["index_count"] : 40] = chance.randint(0, entries + 1).to_bytes(4, "big")
    result, after = check(bytes(content), twin, sentinel)
    assert result in (kernel.SOUND, kernel.REPAIRED, kernel.DAMAGED)
    if result != kernel.DAMAGED:
        assert check(after, twin, sentinel) == (kernel.SOUND, after)
    for key_hash in (0, 1, chance.getrandbits(31)):
        found = select(bytes(content), twin, chance.getrandbits(41), key_hash, 0, 2**62, 3, sentinel)
        numbers = [number for _, number in found]
        assert numbers == sorted(set(numbers), reverse=True)
        assert all(0 < number < entries for number in numbers)


ROLES = st.sampled_from(["wanted", "wanted", "optional", "hidden"])


@given(files(), st.lists(ROLES, min_size=20, max_size=20), st.booleans(), st.data(), sentinels)
@examples(300)
def test_entries_are_matched_with_keys_like_by_the_twin(
    case: tuple[Index, list[Key]], roles: list[str], knows_optional: bool, data: st.DataObject, sentinel: int
) -> None:
    twin, keys = case
    assume(twin.put(keys))
    offsets = sorted({key[1] for key in keys})
    role = dict(zip(offsets, roles, strict=False))
    wanted = [key for key in keys if role[key[1]] == "wanted"]
    optional = [key for key in keys if role[key[1]] == "optional"] if knows_optional else None
    number = data.draw(
        st.sampled_from([1, *(k for k in range(2, len(twin.keys) + 1) if keys[k - 1][1] > keys[k - 2][1])])
    )
    wanted = [key for key in wanted if key[1] >= keys[number - 1][1]]
    reached = data.draw(st.sampled_from([*offsets, offsets[-1] + 1]))
    blob = bytearray(twin.encode())
    if data.draw(st.booleans()):
        changed = data.draw(st.integers(1, len(twin.keys)))
        blob[entry_at(twin.slots, changed) + data.draw(st.integers(0, 15))] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()) and wanted:
        wanted.pop(data.draw(st.integers(0, len(wanted) - 1)))
    found = match(bytes(blob), twin, number, reached, wanted, optional, sentinel)
    assert found == expected_match(bytes(blob), twin, number, reached, wanted, optional)


def expected_match(
    blob: bytes, twin: Index, number: int, reached: int, wanted: list[Key], optional: list[Key] | None
) -> tuple[int, int, bool]:
    entries = [INDEX_ENTRY.unpack(blob, entry_at(twin.slots, each)) for each in range(len(twin.keys) + 1)]
    key, last = 0, entries[number - 1].physical_offset
    known = [other[:2] for other in optional or []]
    while number < len(entries) and (entry := entries[number]).physical_offset < reached:
        at = entry.physical_offset
        rest = [other[1] for other in wanted[key:]]
        if rest and rest[0] == at:
            key_hash, _, store_ms = wanted[key]
            seconds = min(max(store_ms - twin.keys[0][2], 0) // 1000, 2**31 - 1)
            if entry.key_hash != key_hash or (number > 1 and entry.seconds != seconds):
                return number, key, False
            key += 1
        else:
            is_repeated = at in [other[1] for other in wanted[:key][-1:]]
            is_known = optional is None or (entry.key_hash, at) in known
            if at < last or min(rest, default=at) < at or is_repeated or not is_known:
                return number, key, False
            if optional is not None:
                del known[: known.index((entry.key_hash, at)) + 1]
        last, number = at, number + 1
    return number, key, True


def test_a_file_without_the_last_key_of_a_record_lacks_it_and_a_repeated_entry_differs() -> None:
    keys = [(5, 100, 1_000), (6, 100, 1_000), (7, 200, 3_000)]
    twin = Index(7, 24)
    twin.put(keys[:1])
    assert match(twin.encode(), twin, 1, 300, keys, None) == (2, 1, True)
    twin.put([keys[1], keys[1], keys[2]])
    assert match(twin.encode(), twin, 1, 300, keys, None) == (3, 2, False)
    assert match(twin.encode(), twin, 1, 300, [keys[2]], None) == (5, 1, True), "of a deleted topic"
    assert match(twin.encode(), twin, 1, 300, [keys[2]], []) == (1, 0, False)
    assert match(twin.encode(), twin, 1, 300, [keys[2]], keys[:2]) == (3, 0, False), "repeated"
    assert match(twin.encode(), twin, 1, 300, [keys[2]], [*keys[:2], keys[1]]) == (5, 1, True)
