"""RocketMQ's client for Go against the gateway: its authors' example programs send to a topic and read it.

``scripts/rocketmq-suite go`` runs all examples. Optional: skipped without Go, or if Go cannot fetch or build them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from flintmq.scripts.rocketmq_suite.brokers import Target
from flintmq.scripts.rocketmq_suite.go_examples import GoExamples
from flintmq.scripts.rocketmq_suite.java import Unavailable
from flintmq.scripts.rocketmq_suite.outcomes import Report
from tests.remoting_tools import RemotingBroker

pytestmark = pytest.mark.timeout(300)
EXAMPLES = ["producer/batch", "consumer/simple"]


@pytest.fixture(scope="module")
def examples(gateway: RemotingBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoExamples]:
    address = "{}:{}".format(*gateway.address)
    folder = tmp_path_factory.mktemp("go")
    try:
        yield GoExamples(folder, Target(address, address))
    except Unavailable as missing:
        pytest.skip(str(missing))
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_works_as_its_authors_wrote_it(examples: GoExamples, name: str) -> None:
    report = Report()
    try:
        examples.run(report, [name])
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert [(outcome.case, outcome.state, outcome.detail) for outcome in report.outcomes] == [(name, "passed", "")]
