"""How far the archive is, as the command line, the client and the metrics show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.broker.metrics.catalog import METRICS
from flintmq.client import Admin, Message, Producer
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, RunningBroker
from tests.group_tools import until
from tests.metrics_tools import Scrape


def test_the_status_follows_the_archive(broker: BrokerFactory, tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    running = broker(settings={"archive.url": url, "archive.interval_ms": 100})
    with Producer(running.address) as producer, Admin(running.address) as admin:
        producer.send_many([Message("orders", b"x") for _ in range(100)])
        until(lambda: admin.archive().messages == 100, "the archive")
        until(lambda: admin.archive().behind_bytes == 0, "its end")
        found = admin.archive()
    assert (found.url, found.state, found.reason, found.oldest_age_ms) == (url, "running", "", 0)
    assert found.archived_offset == found.raw_bytes
    assert found.archived_at is not None
    with Cli(tmp_path, running.address) as cli:
        done = cli.run("archive", "status", "-o", "json")
        assert done.code == 0
        (row,) = done.rows
        assert (row["url"], row["messages"], row["gaps"]) == (url, 100, [])
        assert "running" in cli.run("archive", "status").out
    check_metrics(running)


def check_metrics(running: RunningBroker) -> None:
    """Check the series of a broker with an archive."""
    scrape = Scrape(running)
    shown = {name for name in scrape.families if name.startswith("flintmq_archive_")}
    wanted = (metric.name for metric in METRICS if metric.name.startswith("flintmq_archive_"))
    assert shown == {name.removesuffix("_total") for name in wanted}
    assert scrape("flintmq_archive_state", state="running") == 1
    assert scrape("flintmq_archive_state", state="stopped") == 0
    assert scrape("flintmq_archive_behind_bytes") == 0
    assert scrape("flintmq_archive_raw_bytes_total") > 0
    assert scrape("flintmq_archive_requests_total", verb="create") > 0
    assert scrape("flintmq_archive_failures_total") == 0


def test_a_broker_without_an_archive_says_so(shared_broker: RunningBroker, tmp_path: Path) -> None:
    with Cli(tmp_path, shared_broker.address) as cli:
        done = cli.run("archive", "status", "-o", "json")
        assert (done.code, done.rows[0]["state"]) == (0, "off")
        assert "set archive.url" in cli.run("archive", "status").err


def test_an_archive_that_must_not_be_written_is_said_to_be_stopped(broker: BrokerFactory, tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    first = broker(settings={"archive.url": url, "archive.interval_ms": 100})
    with Admin(first.address) as admin:
        until(lambda: admin.archive().state == "running", "the first broker")
    first.stop()
    second = broker(settings={"archive.url": url, "archive.interval_ms": 100})
    with Admin(second.address) as admin, Cli(tmp_path, second.address) as cli:
        until(lambda: admin.archive().state == "stopped", "the second broker")
        done = cli.run("archive", "status", "-o", "json")
        assert done.code == 1
        assert "the archive of another store" in done.rows[0]["reason"]
    assert Scrape(second)("flintmq_archive_state", state="stopped") == 1


@pytest.mark.parametrize(
    ("url", "reason"), [("ftp://x/y", "is not the URL"), ("s3://user:secret@bucket/x", "user or a password")]
)
def test_a_url_that_is_none_is_refused_at_the_start(broker: BrokerFactory, url: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason) as refused:
        broker(settings={"archive.url": url})
    assert "secret" not in str(refused.value)
