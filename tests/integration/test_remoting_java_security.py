"""RocketMQ's own client in Java with access keys and with TLS. Optional: skipped without a JDK or Maven."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from tests.integration.rocketmq.harness import JavaDriver, class_path
from tests.overload_tools import soon
from tests.remoting_keys import SECRET, key_of, remoting_broker_with_users
from tests.remoting_tools import RemotingBroker
from tests.tls_tools import Authority

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOPIC, GROUP = "signed-orders", "signed-orders-group"
GRANTS: dict[str, list[dict[str, Any]]] = {
    "shop": [
        {"actions": ["publish", "consume"], "topic": TOPIC},
        {"actions": ["consume"], "group": GROUP},
        {"actions": ["publish"], "group": "java-transactions"},
    ],
    "guest": [],
}
Start = Callable[..., JavaDriver]
"""Starts a client with the access key of a user, and a secret key."""


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemotingBroker]:
    settings = {"transactions.timeout_ms": 500, "transactions.check_interval_ms": 500}
    if request.param:
        settings |= Authority(tmp_path).issue().broker_settings
    class_path()  # skips before the broker starts
    with remoting_broker_with_users(tmp_path, GRANTS, settings) as gateway:
        yield gateway


@pytest.fixture
def start(gateway: RemotingBroker, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    tls = ["tls.enable=true"] if request.node.callspec.params["gateway"] else []
    drivers: list[JavaDriver] = []

    def started(*credentials: str) -> JavaDriver:
        address = "{}:{}".format(*gateway.address)
        home = tmp_path / f"java-{len(drivers)}"
        driver = JavaDriver(class_path(), home, "ProducerDriver", address, *credentials, properties=tls)
        drivers.append(driver)
        assert driver.answer() == {"started": True}
        return driver

    yield started
    for driver in drivers:
        driver.kill()


def test_a_signing_client_sends_and_receives_as_its_user(gateway: RemotingBroker, start: Start) -> None:
    java = start(key_of("shop"), SECRET)
    messages = [{"body": f"body {number} ü", "keys": f"key {number}"} for number in range(5)]
    java.call("send", topic=TOPIC, messages=messages)
    java.call("batch", topic=TOPIC, messages=[{"body": "in a batch"}])
    java.call("transactions", topic=TOPIC, outcomes={"by a check": "check commit"})
    java.call("consume", topic=TOPIC, group=GROUP, tags="*")
    received = java.call("received", group=GROUP, count=7)["messages"]
    expected = [*(message["body"] for message in messages), "in a batch", "by a check"]
    assert sorted(message["body"] for message in received) == sorted(expected)


@pytest.mark.parametrize(
    ("credentials", "words"),
    [
        ((), "carries no AccessKey"),
        ((key_of("shop"), "not its secret key"), "is unknown, or its signature is wrong"),
        ((key_of("guest"), SECRET), "flintmq user grant guest --publish signed-orders"),
    ],
    ids=["no key", "a wrong secret", "no permission"],
)
def test_the_program_gets_the_reason_of_a_refusal(
    gateway: RemotingBroker, start: Start, credentials: tuple[str, ...], words: str
) -> None:
    start(key_of("shop"), SECRET).call("send", topic=TOPIC, messages=[{"body": "first"}])
    refused = start(*credentials)
    with pytest.raises(AssertionError) as error:
        refused.call("send", topic=TOPIC, messages=[{"body": "never"}])
    assert words in str(error.value)
    assert f"CODE: {codes.NO_PERMISSION}" in str(error.value)


@pytest.mark.parametrize("gateway", [True], indirect=True, ids=["TLS"])
def test_a_client_without_tls_is_refused_and_the_log_says_why(gateway: RemotingBroker, tmp_path: Path) -> None:
    address = "{}:{}".format(*gateway.address)
    driver = JavaDriver(class_path(), tmp_path / "java", "ProducerDriver", address, key_of("shop"), SECRET)
    try:
        assert driver.answer() == {"started": True}
        with pytest.raises(AssertionError):
            driver.call("send", topic=TOPIC, messages=[{"body": "never"}])
    finally:
        driver.kill()
    soon(lambda: "TLS handshake failed" in gateway.running.log)
