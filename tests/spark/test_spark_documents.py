"""The programs of ``docs/tutorials/flights.md`` and of ``client/spark/README.md``, in this ring's session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Message, Producer
from tests.conftest import BrokerFactory, RunningBroker
from tests.document_reader import read_blocks

ROOT = Path(__file__).parents[2]
FOLDERS = ("/data/", "/lake/", "flights-")


def run(block: str, broker: RunningBroker, folder: Path, names: dict[str, Any]) -> None:
    """Run a block with the address of a broker and folders of the test."""
    program = block.replace("127.0.0.1:10911", broker.address).replace("/backup/store", str(broker.store))
    for begin in FOLDERS:
        program = program.replace(f'"{begin}', f'"{folder}/{begin.strip("/")}-')
    exec(program, names)


def test_the_tutorial_prints_what_it_shows(
    spark: Any, broker: BrokerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = broker()
    names: dict[str, Any] = {}
    shown = ""
    for block in read_blocks(ROOT / "docs" / "tutorials" / "flights.md"):
        if block.language == "python":
            run(block.text, running, tmp_path, names)
            shown = capsys.readouterr().out
        elif block.language == "text":
            assert shown == block.text
    assert names["spark"].sparkContext is spark.sparkContext


def test_the_programs_of_the_readme_run(spark: Any, broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    with Producer(running.address) as producer, Admin(running.address) as admin:
        producer.send_many([Message("orders", b"%d" % number, tags="eu") for number in range(10)])
        admin.create_topic("copies")
        names: dict[str, Any] = {}
        blocks = read_blocks(ROOT / "client" / "spark" / "README.md")
        for block in blocks:
            assert block.language == "python"
            run(block.text, running, tmp_path, names)
            if (query := names.pop("query", None)) is not None:
                query.processAllAvailable()  # it begins at the end of the topic
                producer.send(Message("orders", b"new"))
                query.processAllAvailable()
                query.stop()
        assert sum(queue.count for queue in admin.topic_stats("orders")) == 10 + 2 + 1  # a block writes a row
        assert sum(queue.count for queue in admin.topic_stats("copies")) == 1
    assert len(blocks) == 5
    assert spark.read.parquet(f"{tmp_path}/data-orders").count() == 1
    assert spark.read.parquet(f"{tmp_path}/lake-orders").count() == 10
