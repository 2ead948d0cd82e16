"""An archive in a bucket of a real S3 server is scanned and searched without a broker."""

from __future__ import annotations

import polars as pl
import pytest

from flintmq.client.arrow import read_store
from flintmq.client.polars import scan_store
from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.archive.reader import ArchiveReader, NoArchive
from tests.archive_tools import make_archive, orders, placed
from tests.object_server import ObjectServer


@pytest.fixture
def url(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    return object_server.bucket() + "/history"


def test_an_archive_in_a_bucket_is_scanned_and_searched(url: str) -> None:
    records = placed(orders(3_000, size=2_000), hole_after=700)
    make_archive(Objects(url), records, per_fragment=1_200, per_group=2, merged=1)
    wanted = [record.body for record in records if record.topic == b"payments"]
    assert read_store(url, "payments", columns=("body",)).table()["body"].to_pylist() == wanted
    assert scan_store(url, "orders").select(pl.len()).collect().item() == 1_500
    with ArchiveReader(Objects(url)) as reader:
        assert list(reader.find_key("orders", "k2468")) == [records[2468].encode()]
        assert list(reader.find_key("orders", "id-2")) == [records[2].encode()]
        assert len(list(reader.find_key("orders", "shared-4"))) == 300


def test_a_prefix_without_an_archive_is_named(url: str) -> None:
    with pytest.raises(NoArchive, match="/history is not an archive"):
        scan_store(url, "orders")
