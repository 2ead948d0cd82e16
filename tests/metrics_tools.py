"""The metrics port of a broker, read by tests."""

from __future__ import annotations

import http.client
import re
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import RunningBroker

Labels: TypeAlias = frozenset[tuple[str, str]]

TIMEOUT_S = 120.0


def metrics_port(broker: RunningBroker) -> int:
    """Return the port that the banner names."""
    (line,) = [line for line in broker.output if line.startswith("metrics: ")]
    match = re.fullmatch(r"metrics: http://127\.0\.0\.1:(\d+)/metrics", line)
    assert match, line
    return int(match[1])


def ask(port: int, path: str, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    """Return the response for a page, and its body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def page(broker: RunningBroker, path: str) -> tuple[int, str]:
    answer, body = ask(metrics_port(broker), path)
    return answer.status, body.decode()


class Scrape:
    """All samples of one scrape."""

    def __init__(self, broker: RunningBroker) -> None:
        status, text = page(broker, "/metrics")
        assert status == 200
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]
