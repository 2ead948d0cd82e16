"""URLs of archives, names of objects, and what a folder holds after a power cut at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flintmq.protocol.storage.archive.objects import InvalidArchiveURL, ObjectError, ObjectExists, Objects, shown_url

SECRET = "a-key-that-nobody-may-see"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"s3://key:{SECRET}@bucket/x", "user or a password"),
        (f"s3://{SECRET}@bucket/x", "user or a password"),
        (f"s3://bucket/x?secret_access_key={SECRET}", "query or a fragment"),
        (f"az://bucket/x#{SECRET}", "query or a fragment"),
        (f"ftp://key:{SECRET}@host/x", "is not the URL of an archive"),
        (f"file://{SECRET}@host/x", "is not the URL of a folder here"),
        (f"http:?{SECRET}", "is not the URL of an archive"),
        ("s3:///x", "names no bucket"),
        ("", "is empty"),
    ],
)
def test_a_url_that_is_refused_is_named_without_its_secrets(url: str, reason: str) -> None:
    with pytest.raises(InvalidArchiveURL, match=reason) as refused:
        Objects(url)
    assert SECRET not in str(refused.value)
    assert SECRET not in shown_url(url)


def test_a_folder_may_be_given_as_path_or_url(tmp_path: Path) -> None:
    Objects(tmp_path / "an archive").put("log/1", b"x")
    assert Objects(f"file://{tmp_path}/an%20archive").get("log/1") == b"x"
    assert Objects(str(tmp_path / "an archive")).get("log/1") == b"x"


@pytest.mark.parametrize("name", ["../x", "a/../b", "/etc/passwd", ".scratch/x", "a//b", "a/", "", "a\nb", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    objects = Objects(tmp_path / "archive")
    for verb in (
        objects.get,
        objects.delete,
        lambda name: objects.put(name, b"x"),
        lambda name: objects.range(name, 0, 1),
    ):
        with pytest.raises(ObjectError, match="is not a name"):
            verb(name)
    assert list(tmp_path.iterdir()) == []


class _Disk:
    """What would be left of a folder if the power were cut now: synced names, with synced contents. An entry that is
    not synced may be there or not, and so may unsynced content."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._root = root
        self.contents: dict[int, bytes] = {}
        self.folders: dict[int, dict[str, int]] = {os.stat(root).st_ino: {}}
        self.moments: list[Callable[[], None]] = []
        self._syncing = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, fd: int) -> None:
        self._syncing(fd)
        number = os.fstat(fd).st_ino
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            self.folders[number] = {each.name: each.stat().st_ino for each in path.iterdir()}
        else:
            self.contents[number] = path.read_bytes()
        for look in self.moments:
            look()

    def sure(self, name: str) -> bytes | None:
        """Return the content under a name that is there after any power cut from now on, or None."""
        number = os.stat(self._root).st_ino
        for part in name.split("/"):
            found = self.folders.get(number, {}).get(part)
            if found is None:
                return None
            number = found
        return self.contents.get(number, b"")

    @contextmanager
    def looked_at(self, look: Callable[[], None]) -> Iterator[None]:
        """Call ``look`` after each sync."""
        self.moments.append(look)
        yield
        self.moments.remove(look)


def test_an_object_of_a_folder_survives_a_power_cut_from_the_return_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _Disk(monkeypatch, tmp_path)
    objects = Objects(tmp_path / "backups" / "archive")
    name = "backups/archive/log/7/0-5.log"

    def look(*allowed: bytes | None) -> Callable[[], None]:
        def check() -> None:
            assert disk.sure(name) in allowed
            path = tmp_path / name
            assert not path.exists() or path.read_bytes() == disk.contents[path.stat().st_ino]

        return check

    with disk.looked_at(look(None, b"first")):
        objects.create("log/7/0-5.log", b"first")
    assert disk.sure(name) == b"first"
    with disk.looked_at(look(b"first")), pytest.raises(ObjectExists):
        objects.create("log/7/0-5.log", b"other")
    with disk.looked_at(look(b"first", b"second")):
        objects.put("log/7/0-5.log", b"second")
    assert disk.sure(name) == b"second"
    objects.delete("log/7/0-5.log")
    assert disk.sure(name) is None


def test_what_a_killed_writer_left_half_written_is_no_object_and_is_removed_after_a_day(tmp_path: Path) -> None:
    scratch = tmp_path / ".scratch"
    scratch.mkdir()
    for name, age_s in (("old", 25 * 3600), ("new", 23 * 3600)):
        (scratch / name).write_bytes(b"half")
        moment = (tmp_path.stat().st_mtime_ns // 10**9) - age_s
        os.utime(scratch / name, (moment, moment))
    objects = Objects(tmp_path)
    assert list(objects.list()) == []
    objects.put("log/1", b"x")
    assert [each.name for each in objects.list()] == ["log/1"]
    assert [each.name for each in scratch.iterdir()] == ["new"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"a file")
    with pytest.raises(ObjectError, match=r"archive/log/1: .*a file is where a folder belongs"):
        Objects(tmp_path / "archive").put("log/1", b"x")
