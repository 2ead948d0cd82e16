"""Spark against a broker with users and TLS: batches, streams and the sink get access, and the password stays
hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Brokers
from tests.security_tools import PASSWORD, SCRAM, set_user
from tests.spark.sink_tools import NEVER_S
from tests.tls_tools import Authority


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the options for access to a broker with TLS and the user `spark`."""
    folder = tmp_path_factory.mktemp("security")
    authority = Authority(folder)
    set_user(folder / "store", "spark")
    brokers = Brokers(folder)
    running = brokers.start(store=folder / "store", settings={**SCRAM, **authority.issue().broker_settings})
    yield {"bootstrap": running.address, "user": "spark", "password": PASSWORD, "tls": authority.path}
    brokers.stop_all()


def test_batches_streams_and_the_sink_get_access(
    spark: Any, access: dict[str, str], bodies_of_range: Callable[..., Any], tmp_path: Path
) -> None:
    for delivery in ("at-least-once", "exactly-once"):
        written = bodies_of_range(0, 100).write.format("flintmq").mode("append")
        written.options(topic="orders", delivery=delivery, **access).save()
    frame = spark.read.format("flintmq").options(subscribe="orders", **access).load()
    assert frame.count() == 200
    plan = frame._jdf.queryExecution().toString()
    assert "flintmq" in plan
    assert PASSWORD not in plan

    (tmp_path / "secret").write_text(f"{PASSWORD}\nand more")
    by_file = {name: value for name, value in access.items() if name != "password"}
    by_file["passwordFile"] = str(tmp_path / "secret")
    reader = spark.readStream.format("flintmq").options(subscribe="orders", startingOffsets="earliest", **by_file)
    writer = reader.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    assert query.awaitTermination(NEVER_S)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 200
    checkpoint = b"".join(path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert PASSWORD.encode() not in checkpoint


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"password": "wrong one"}, "AuthenticationFailed: user 'spark' at broker 'flintmq'"),
        ({"user": None, "password": None}, "AuthenticationRequired"),
        ({"tls": None}, "the broker may require TLS"),
        ({"tls": "true"}, "TlsFailed"),
    ],
)
def test_refused_access_has_a_reason_and_shows_no_password(
    spark: Any, access: dict[str, str], change: dict[str, str | None], says: str
) -> None:
    options = {name: value for name, value in {**access, **change}.items() if value is not None}
    with pytest.raises(Exception) as raised:
        spark.read.format("flintmq").options(subscribe="orders", **options).load().count()
    text = str(raised.value)
    assert says in text
    assert PASSWORD not in text
    assert "wrong one" not in text
    assert "Traceback" not in text
