"""The verbs on objects do the same over a bucket and over a folder: what a dict would do."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.protocol.storage.archive.objects import ObjectCutShort, ObjectExists, ObjectNotFound, Objects

obstore = pytest.importorskip("obstore.store")

NAMES = st.sampled_from(["archive.json", "log/7/0-10-ab.log", "log/7/0-10-ab.idx", "log/8/10-20-cd.log", "logs/x"])
CONTENT = st.binary(max_size=40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, CONTENT),
        st.tuples(st.just("put"), NAMES, CONTENT),
        st.tuples(st.just("delete"), NAMES, st.just(b"")),
    ),
    max_size=12,
)


def _check(objects: Objects, steps: list[tuple[str, str, bytes]], begin: int, size: int) -> None:
    held: dict[str, bytes] = {}
    for verb, name, content in steps:
        if verb == "delete":
            objects.delete(name)
            held.pop(name, None)
        elif verb == "put":
            objects.put(name, content)
            held[name] = content
        elif held.setdefault(name, content) == content:
            objects.create(name, content)
        else:
            with pytest.raises(ObjectExists):
                objects.create(name, content)
    for prefix in ("", "log", "log/7"):
        below = f"{prefix}/" if prefix else ""
        wanted = [(name, len(held[name])) for name in sorted(held) if name.startswith(below)]
        assert [(each.name, each.size) for each in objects.list(prefix)] == wanted
    for name in {name for _, name, _ in steps}:
        if name not in held:
            with pytest.raises(ObjectNotFound):
                objects.get(name)
            with pytest.raises(ObjectNotFound):
                objects.range(name, 0, 1)
            continue
        assert objects.get(name) == held[name]
        if begin + size <= len(held[name]):
            assert objects.range(name, begin, begin + size) == held[name][begin : begin + size]
        else:
            with pytest.raises(ObjectCutShort):
                objects.range(name, begin, begin + size)


@given(STEPS, st.integers(0, 50), st.integers(1, 50))
def test_a_bucket_does_what_a_dict_does(steps: list[tuple[str, str, bytes]], begin: int, size: int) -> None:
    _check(Objects.over(obstore.MemoryStore(), "memory"), steps, begin, size)


@given(STEPS, st.integers(0, 50), st.integers(1, 50))
def test_a_folder_does_what_a_dict_does(steps: list[tuple[str, str, bytes]], begin: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _check(Objects(Path(folder, "archive")), steps, begin, size)
