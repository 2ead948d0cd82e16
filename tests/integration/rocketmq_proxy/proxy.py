"""Apache RocketMQ's Proxy before a broker, and its gRPC client's cases through it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flintmq.protocol.remoting import codes
from tests.integration.rocketmq.harness import JAVA_OPTIONS
from tests.processes import free_port
from tests.remoting_tools import RemotingSocket, json_blob

FOLDER = Path(__file__).parent
CASES = ("normal", "again", "renewed", "push", "fifo", "delay", "transaction", "filter", "dead")
"""All cases of ``GrpcDriver``; the broker must ask producers after ``transactions.timeout_ms`` of a few seconds."""
SHORT_CASES = ("normal", "push", "fifo", "delay", "transaction", "dead")
CASES_SECONDS_MAX = 400.0
START_SECONDS_MAX = 120.0
CLIENT_JAR = "rocketmq-client-java"
STARTED = "rocketmq-proxy startup successfully"
MESSAGE_TYPES = ("normal", "fifo", "delay", "transaction")
GROUPS: dict[str, dict[str, Any]] = {"g-fifo": {"consumeMessageOrderly": True}, "g-dead": {"retryMaxTimes": 1}}
_GROUP_DEFAULTS: dict[str, Any] = {
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
}


class Row(NamedTuple):
    """The result of one case. ``reason``: why it failed."""

    case: str
    passed: bool
    reason: str


def prepare(remote: RemotingSocket) -> None:
    """Create the topics and groups of the cases, as RocketMQ's admin tool does."""
    for kind in MESSAGE_TYPES:
        fields = {
            "topic": f"grpc-{kind}",
            "defaultTopic": "TBW102",
            "readQueueNums": 2,
            "writeQueueNums": 2,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
            "attributes": f"+message.type={kind.upper()}",
        }
        answer = remote.call(codes.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == codes.SUCCESS, answer.remark
    for name, values in GROUPS.items():
        row = {"groupName": name, **_GROUP_DEFAULTS, **values}
        answer = remote.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json_blob(row))
        assert answer.code == codes.SUCCESS, answer.remark


def split(classes: str) -> tuple[str, str]:
    """Return the class path of the Proxy and that of the client, whose jar has some of the Proxy's classes in it."""
    *jars, drivers = classes.split(os.pathsep)
    of_client = [jar for jar in jars if CLIENT_JAR in Path(jar).name]
    return os.pathsep.join(jar for jar in jars if jar not in of_client), os.pathsep.join([*of_client, drivers])


@contextlib.contextmanager
def running_proxy(classes: str, home: Path, broker: str, cluster: str) -> Iterator[str]:
    """Start the Proxy before the broker with the remoting address ``broker``; yield its own address."""
    port = free_port()
    (home / "conf").mkdir(parents=True)
    settings = {
        "rocketMQClusterName": cluster,
        "namesrvAddr": broker,
        "grpcServerPort": port,
        "remotingListenPort": free_port(),
    }
    configuration = home / "conf" / "rmq-proxy.json"
    configuration.write_text(json.dumps(settings))
    options = [*JAVA_OPTIONS, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-cp", split(classes)[0]]
    command = ["java", *options, "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(configuration)]
    log = home / "output"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=home, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        until = time.monotonic() + START_SECONDS_MAX
        while STARTED not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < until, log.read_text(errors="replace")[-3000:]
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def run_cases(classes: str, home: Path, proxy: str, cases: Sequence[str] = CASES) -> list[Row]:
    """Run cases of the gRPC client against a Proxy; return a row for each. ``home``: folder for the client's logs."""
    home.mkdir(parents=True, exist_ok=True)
    options = [*JAVA_OPTIONS, f"-Duser.home={home}", "-cp", split(classes)[1]]
    command = ["java", *options, "GrpcDriver", proxy, *cases]
    ran = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=CASES_SECONDS_MAX, check=False)
    rows = {}
    for line in ran.stdout.splitlines():
        if line.startswith("CASE "):
            _, case, state, *reason = line.split(" ", 3)
            rows[case] = Row(case, state == "passed", reason[0] if reason else "")
    return [rows.get(case, Row(case, False, f"not run: {ran.stderr[-500:]}")) for case in cases]
