"""The verbs on objects of a real S3 server, also when its answers are lost, cut, late, or say that it is busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flintmq.protocol.storage.archive.objects import (
    ConditionsIgnored,
    ObjectCutShort,
    ObjectError,
    ObjectExists,
    ObjectNotFound,
    Objects,
    ObjectStoreUnavailable,
)
from tests.object_server import SECRET, FaultyStore, ObjectServer
from tests.tcp_proxy import Link


@pytest.fixture
def url(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    return object_server.bucket() + "/history"


@pytest.fixture
def proxy(url: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    proxy = FaultyStore(object_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    yield proxy
    proxy.close()


def test_objects_of_a_bucket_are_written_listed_read_and_deleted(url: str) -> None:
    objects = Objects(url)
    names = [f"log/7/{number:04}.log" for number in range(1100)]  # more than a server lists at once
    for name in names:
        objects.create(name, name.encode())
    assert [each.name for each in objects.list("log")] == names
    assert objects.range(names[5], 4, 6) == b"7/"
    assert Objects(url.removesuffix("/history")).get(f"history/{names[7]}") == names[7].encode()
    objects.delete(names[0])
    objects.delete(names[0])
    with pytest.raises(ObjectNotFound, match=r"history/log/7/0000\.log"):
        objects.get(names[0])
    for begin in (5, 14, 100):
        with pytest.raises(ObjectCutShort):
            objects.range(names[1], begin, begin + 100)


def test_of_writers_that_create_one_object_at_once_exactly_one_succeeds(url: str) -> None:
    objects = Objects(url)
    for number in range(5):
        begun = threading.Barrier(4)

        def wins(writer: int, name: str = f"manifest/{number}", begun: threading.Barrier = begun) -> bool:
            begun.wait()
            try:
                objects.create(name, b"writer %d" % writer)
            except ObjectExists:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(wins, range(4)))
        assert won.count(True) == 1
        assert objects.get(f"manifest/{number}") == b"writer %d" % won.index(True)


@pytest.mark.parametrize("fault", ["lost", "503", "cut", "stalled"])
def test_a_create_whose_answer_goes_wrong_finds_its_own_object(url: str, proxy: FaultyStore, fault: str) -> None:
    objects = Objects(url, deadline_s=2.0 if fault == "stalled" else 20.0)
    proxy.faults.append(fault)
    objects.create("manifest/1", b"mine")
    assert not proxy.faults
    assert objects.get("manifest/1") == b"mine"
    proxy.faults.append(fault)
    with pytest.raises(ObjectExists, match="another object has this name"):
        objects.create("manifest/1", b"other")
    assert objects.get("manifest/1") == b"mine"


@pytest.mark.parametrize("fault", ["lost", "503", "cut", "stalled"])
def test_reads_go_on_after_an_answer_that_went_wrong(url: str, proxy: FaultyStore, fault: str) -> None:
    objects = Objects(url, deadline_s=2.0 if fault == "stalled" else 20.0)
    content = bytes(range(256)) * 100
    objects.put("log/1", content)
    proxy.faults.append(fault)
    assert objects.get("log/1") == content
    proxy.faults.append(fault)
    assert objects.range("log/1", 1000, 9000) == content[1000:9000]
    proxy.faults.append(fault)
    assert [each.name for each in objects.list()] == ["log/1"]


def test_a_store_that_stays_busy_is_named_when_the_deadline_is_over(url: str, proxy: FaultyStore) -> None:
    objects = Objects(url, deadline_s=0.3)
    proxy.faults.extend(["503"] * 100)
    with pytest.raises(ObjectStoreUnavailable, match=r"cannot put s3://.*/history/log/1: .*503") as raised:
        objects.put("log/1", b"x")
    assert raised.value.retriable


def test_a_store_that_is_away_is_named(url: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = FaultyStore(object_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    proxy.close()
    with pytest.raises(ObjectStoreUnavailable, match=r"cannot get s3://.*/history/log/1"):
        Objects(url, deadline_s=0.3).get("log/1")


def test_a_missing_bucket_is_named(url: str) -> None:
    with pytest.raises(ObjectNotFound, match="Create the bucket"):
        Objects("s3://no-such-bucket/x").put("log/1", b"x")


def test_the_probe_accepts_a_store_that_honours_conditions(url: str) -> None:
    objects = Objects(url)
    objects.check_conditions()
    assert not list(objects.list())


class _Overwriting(FaultyStore):
    """A proxy that hides the condition of creating writes from the server, as stores that ignore it."""

    def _carry_requests(self, link: Link) -> None:
        while data := link.client.recv(65_536):
            link.broker.sendall(data.replace(b"if-none-match: *", b"x-none-match: 1 "))
        link.end()


def test_the_probe_finds_a_store_that_ignores_conditions(
    url: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = _Overwriting(object_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    objects = Objects(url)
    try:
        with pytest.raises(ConditionsIgnored, match="ignores `If-None-Match"):
            objects.check_conditions()
        assert not list(objects.list())
    finally:
        proxy.close()


def test_credentials_come_from_a_file_and_are_in_no_error(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    keys = tmp_path / "credentials"
    keys.write_text(f"[archive]\naws_access_key_id = {SECRET}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_PROFILE", "archive")
    objects, other = Objects(url), Objects(url)
    objects.put("log/1", b"x")
    assert objects.get("log/1") == b"x"
    with pytest.raises(ObjectNotFound) as missing:
        objects.get("log/2")
    keys.write_text("[archive]\n")
    with pytest.raises(ObjectError, match="has no keys of the profile 'archive' any more") as refused:
        other.get("log/1")
    assert SECRET not in f"{objects!r} {missing.value!r} {refused.value!r}"
