"""The integration tests of Apache RocketMQ (module ``test`` of its sources), against a broker outside their process.

The sources are read from a checkout, and copied with a changed base class into the scratch folder of the run.
"""

from __future__ import annotations

import base64
import re
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .brokers import BROKER, CLUSTER, Target, process, until
from .java import FOLDER, Unavailable, compile_java, java_command
from .outcomes import Outcome, Report, State, chosen

SUITE = "integration tests of Apache RocketMQ 5.3.3"
PACKAGE = "org.apache.rocketmq.test."
BASE = Path("base/BaseConf.java")
CLASS_SECONDS_MAX = 900.0
AGAIN = "passed when run again"
ENCRYPTED = "tls."
"""Beginning of the names of classes that test TLS."""
NOT_COMPILED = ("autoswitchrole", "container", "dledger", "lmq", "schema", "statictopic")
_OWN_BROKERS = "starts brokers, name servers or controllers in its own process"
_INSIDE = "changes or asks parts inside the broker's process"
_BATCH_QUEUES = "needs ConsumeQueues of batches, a store format that FlintMQ does not offer"
NOT_APPLICABLE = {
    "autoswitchrole.": _OWN_BROKERS,
    "client.producer.batch.BatchSendIT#testBatchSend_SysInnerBatch": _BATCH_QUEUES,
    "client.producer.batch.BatchSendIT#testBatchSend_ViewMessage": _BATCH_QUEUES,
    "container.": _OWN_BROKERS,
    "dledger.": _OWN_BROKERS,
    "grpc.v2.LocalGrpcIT": _INSIDE,
    "lmq.": "replaces the client's parts, without a broker",
    "offset.LagCalculationIT#testEstimateLag": _INSIDE,
    "offset.OffsetNotFoundIT": _INSIDE,
    "offset.OffsetResetForPopIT#testResetOffsetThenAckOldForPopOrderly": _INSIDE,
    "offset.OffsetResetForPopIT#testRestOffsetToSkipMsgForPopOrderly": _INSIDE,
    "route.CreateAndUpdateTopicIT": _OWN_BROKERS,
    "schema.": "compares Java classes with a file, without a broker",
    "smoke.": _OWN_BROKERS,
    "tls.TlsMix": "needs one port for plain and for encrypted connections; with a certificate, FlintMQ encrypts all",
    "statictopic.": "needs static topics over several brokers, which FlintMQ does not offer",
}
"""Why classes, or single tests, cannot judge a broker outside their process; by the beginning of their name."""
STATIC_BLOCK = """
    static {
        NAMESRV_ADDR = ExternalBroker.NAME_SERVER;
        CLUSTER_NAME = ExternalBroker.CLUSTER;
        BROKER1_NAME = BROKER2_NAME = BROKER3_NAME = ExternalBroker.NAME;
        brokerController1 = brokerController2 = brokerController3 = ExternalBroker.controller();
        brokerControllerList = ImmutableList.of(brokerController1);
        brokerControllerMap = java.util.Collections.singletonMap(BROKER1_NAME, brokerController1);
        initMQAdmin(NAMESRV_ADDR);
    }
"""


class ApacheTests:
    """The compiled tests. ``sources``: a checkout of RocketMQ's tag ``rocketmq-all-5.3.3``; ``classes``: the jars."""

    def __init__(self, sources: Path, classes: str, work: Path) -> None:
        module = sources / "test/src"
        if not (module / "test/java").is_dir():
            raise Unavailable(f"{sources} is not a checkout of Apache RocketMQ: it has no folder test/src/test/java")
        self._work = work / "integration-tests"
        self._stopped = threading.Event()
        self.tests = _find_tests(module / "test/java/org/apache/rocketmq/test")
        copied = self._work / "sources"
        for part in ("main", "test"):
            shutil.copytree(module / part / "java/org/apache/rocketmq/test", copied, dirs_exist_ok=True)
        for folder in NOT_COMPILED:
            shutil.rmtree(copied / folder, ignore_errors=True)
        (copied / BASE).write_text(with_external_broker((copied / BASE).read_text()))
        java = [*copied.rglob("*.java"), FOLDER / "drivers/ExternalBroker.java", FOLDER / "drivers/ClassRunner.java"]
        self._classes = f"{compile_java(java, classes, self._work / 'classes')}:{module / 'test/resources'}"

    def run(self, target: Target, encrypted: Target, report: Report, patterns: Sequence[str], jobs: int) -> None:
        """Run the classes whose name contains one of ``patterns``, or all, each in a process, ``jobs`` at a time.

        ``encrypted``: the broker for the tests of TLS.
        """
        with ThreadPoolExecutor(jobs) as pool:
            runs = [
                pool.submit(self._run_class, name, encrypted if name.startswith(ENCRYPTED) else target, report)
                for name in chosen(self.tests, patterns)
            ]
            try:
                for run in runs:
                    run.result()
            except BaseException:  # such as Ctrl-C
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _run_class(self, name: str, target: Target, report: Report) -> None:
        wanted = []
        for method in self.tests[name]:
            case = f"{name}#{method}"
            if reasons := [reason for prefix, reason in NOT_APPLICABLE.items() if case.startswith(prefix)]:
                report.add(Outcome(SUITE, case, "not applicable", reasons[0]))
            else:
                wanted.append(method)
        outcomes = self._run_methods(name, wanted, target) if wanted else {}
        for method in wanted:
            state, detail = outcomes[method]
            if state == "failed" and not self._stopped.is_set():  # some tests race with their own clients
                state, again = self._run_methods(name, [method], target)[method]
                detail = f"{detail}\nAnd when run again: {again}" if state == "failed" else AGAIN
            shown: State = "not applicable" if state == "skipped" else "passed" if state == "passed" else "failed"
            report.add(Outcome(SUITE, f"{name}#{method}", shown, detail))

    def _run_methods(self, name: str, methods: Sequence[str], target: Target) -> dict[str, tuple[str, str]]:
        """Run some tests of a class in a process, and return the state and the detail of each."""
        options = ["-Xmx512m", "-Dtls.test.mode.enable=true", "--add-opens=java.base/java.util=ALL-UNNAMED"]
        options += [f"-Dtls.enable={str(name.startswith(ENCRYPTED)).lower()}"]
        options += [f"-Dsuite.nameServer={target.name_server}", f"-Dsuite.address={target.address}"]
        options += [f"-Dsuite.cluster={CLUSTER}", f"-Dsuite.broker={BROKER}"]
        home = self._work / "homes" / name
        command = java_command(self._classes, home, "ClassRunner", [PACKAGE + name, *methods], options)
        output = home / "output"
        ended = f"not finished after {CLASS_SECONDS_MAX:.0f} s; output: {output}"
        with output.open("w") as written, process(command, written) as running:
            for _ in until(CLASS_SECONDS_MAX):
                if running.poll() is not None:
                    ended = ""
                if not ended or self._stopped.is_set():
                    break
        return read_outcomes(output.read_text(errors="replace"), methods, ended)


def with_external_broker(base_class: str) -> str:
    """Return the source of the tests' base class with the external broker for the three that it starts.

    Raises ``Unavailable`` if the class is another than that of RocketMQ 5.3.
    """
    changed, blocks = re.subn(r"\n    static \{\n.*?\n    \}\n", lambda _: STATIC_BLOCK, base_class, flags=re.DOTALL)
    changed, counts = re.subn(r"(int BROKER_NUM = )3;", r"\g<1>1;", changed)
    if (blocks, counts) != (1, 1):
        raise Unavailable(f"{BASE} is not that of RocketMQ 5.3; check out the tag rocketmq-all-5.3.3")
    return changed


def read_outcomes(output: str, wanted: Sequence[str], ended: str) -> dict[str, tuple[str, str]]:
    """Return state and detail of each wanted test from the lines of ``ClassRunner``.

    A test without a line failed, with ``ended`` or the end of the output as its detail.
    """
    found: dict[str, tuple[str, str]] = {}
    of_class = ("failed", ended or output[-2000:])
    for state, method, detail in re.findall(r"^SUITE (\w+) (\S+) (\S*)$", output, flags=re.MULTILINE):
        if state == "started":
            continue
        text = base64.b64decode(detail).decode()
        if method == "(class)":
            of_class = (state, text)
        elif found.get(method, ("",))[0] != "failed":
            found[method] = (state, text)
    return {method: found.get(method, of_class) for method in wanted}


def _find_tests(folder: Path) -> dict[str, list[str]]:
    """Return each class with tests, and the names of its tests."""
    tests = {}
    for path in sorted(folder.rglob("*.java")):
        text = path.read_text()
        methods = re.findall(r"@Test\b(?:\([^)]*\))?(?:\s*@\w+(?:\([^)]*\))?)*\s+public\s+void\s+(\w+)", text)
        if methods and "abstract class" not in text:
            tests[".".join(path.relative_to(folder).with_suffix("").parts)] = methods
    return tests
