"""``flintmq archive`` on an archive in a bucket of a real S3 server, and in a folder, with no broker anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.record import offset_id
from tests.archive_tools import MadeArchive, make_archive, orders, placed
from tests.cli_tools import Cli
from tests.object_server import SECRET, ObjectServer

RECORDS = placed(orders(120), hole_after=50)


@pytest.fixture(params=["bucket", "folder"])
def made(
    request: pytest.FixtureRequest, object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MadeArchive:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    url = object_server.bucket() + "/history" if request.param == "bucket" else str(tmp_path / "history")
    return make_archive(Objects(url), RECORDS, per_group=4, merged=3)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, broker="127.0.0.1:1")


def test_messages_are_found_by_key(made: MadeArchive, cli: Cli) -> None:
    url = made.objects.url
    done = cli.run("archive", "query", url, "--key", "shared-7", "--topic", "payments", "-o", "json")
    assert (done.code, done.err) == (0, "")
    assert [row["queue_offset"] for row in done.rows] == [each.queue_offset for each in RECORDS[117::-10]]
    everywhere = cli.run("archive", "query", url, "--key", "k4", "--format", "%T %o %k\\n")
    assert everywhere.out == "orders 1 k4 shared-4\n"
    some = cli.run(
        "archive", "query", url, "--key", "shared-7", "-n", "2", "--until", "2023-11-14T22:14:57Z", "-o", "json"
    )
    assert [row["keys"][0] for row in some.rows] == ["k97", "k87"]
    missing = cli.run("archive", "query", url, "--key", "k4", "--topic", "payments")
    assert (missing.code, missing.out) == (4, "")
    assert "topic payments of the archive has no such message with the key k4" in missing.err


def test_a_message_is_found_by_its_offset_id(made: MadeArchive, cli: Cli) -> None:
    record = RECORDS[33]
    id_ = offset_id(record.store_host, record.physical_offset)
    done = cli.run("archive", "query", made.objects.url, "--id", id_, "-o", "json")
    assert [row["keys"] for row in done.rows] == [["k33", "shared-3"]]
    other = offset_id(record.store_host, made.manifest.end)
    done = cli.run("archive", "query", made.objects.url, "--id", other)
    assert (done.code, done.out) == (4, "")
    assert cli.run("archive", "query", made.objects.url, "--id", "x").code == 4
    assert cli.run("archive", "query", made.objects.url).code == 2


def test_verify_names_what_is_damaged(made: MadeArchive, cli: Cli) -> None:
    url = made.objects.url
    sound = cli.run("archive", "verify", url, "-o", "json")
    assert (sound.code, sound.out) == (0, "")
    assert "read 12 sound fragments with 120 records" in sound.err
    assert "does not name 0 objects" in sound.err
    lost, cut, flipped = (f"log/{name}" for name in _names(made, 2, 5, 8))
    made.objects.delete(lost)
    content = made.objects.get(cut)
    made.objects.put(cut, content[:-1])
    content = made.objects.get(flipped)
    made.objects.put(flipped, content[:50] + bytes([content[50] ^ 1]) + content[51:])
    made.objects.put("log/0000000000/orphan", b"x")
    done = cli.run("archive", "verify", url, "-o", "json")
    assert done.code == 1
    reasons = {row["name"]: row["reason"] for row in done.rows}
    assert set(reasons) == {lost, cut, flipped}
    assert reasons[lost] == "it is missing"
    assert reasons[cut].startswith("it has ")
    assert reasons[flipped] == "its SHA-256 is not the one in the manifest"
    assert "does not name 1 object" in done.err
    assert SECRET not in done.out + done.err + sound.err


def _names(made: MadeArchive, *numbers: int) -> list[str]:
    names = sorted(each.name.removeprefix("log/") for each in made.objects.list("log"))
    return [[name for name in names if name.endswith(".log")][number] for number in numbers]


def test_a_url_that_is_no_archive_or_has_a_secret_is_refused(cli: Cli, tmp_path: Path) -> None:
    nothing = cli.run("archive", "verify", str(tmp_path))
    assert nothing.code == 1
    assert "is not an archive: it has no manifest" in nothing.err
    secret = cli.run("archive", "query", f"s3://key:{SECRET}@bucket", "--key", "k")
    assert secret.code == 2
    assert SECRET not in secret.err
