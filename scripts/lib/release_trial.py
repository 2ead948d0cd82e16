"""Tries an installed FlintMQ; ``release.py`` runs it with the Python of a new environment.

    python -I scripts/lib/release_trial.py client|broker VERSION

``client``: the wheel alone was installed; ``broker``: with the packages for the broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

BODIES = [b"%d" % number + bytes(5_000) for number in range(20)]  # long enough to be compressed
BIN = Path(sys.executable).parent


def check(condition: object, problem: str) -> None:
    """End with an error unless the condition holds."""
    if not condition:
        sys.exit(f"the trial failed: {problem}")


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / program, *arguments], capture_output=True, text=True, timeout=300, check=False)


def try_client(version: str) -> None:
    """Check the version, the programs and the metadata of a client alone."""
    import flintmq
    import flintmq.client
    import flintmq.client.aio

    check(BIN.parent in Path(flintmq.__file__).parents, f"flintmq comes from {flintmq.__file__}")
    check(flintmq.__version__ == version, f"flintmq.__version__ is {flintmq.__version__}")
    check(flintmq.client.Producer and flintmq.client.aio.Producer, "a producer is missing")
    for program in ("flintmq", "flintmq-broker"):
        done = run(program, "--version")
        check(version in done.stdout, f"{program} --version: {done.stdout}{done.stderr}")
    refused = run("flintmq-broker", "serve")
    check(refused.returncode == 1, f"a broker without its packages ends with exit {refused.returncode}")
    check("pip install 'flintmq[broker]'" in refused.stderr, f"it says {refused.stderr}")
    listed = distribution("flintmq").read_text("sboms/flintmq.cdx.json") or "{}"
    check(json.loads(listed).get("bomFormat") == "CycloneDX", "the list of included software is missing")


def try_broker() -> None:
    """Send messages to a broker, kill it, read them after it has started again, and verify its store."""
    import flintmq
    from flintmq.client import Consumer, Message, Producer
    from flintmq.testing import LocalBroker

    for name in ("alerts", "compose", "grafana", "prometheus", "settings", "systemd"):
        check(len(run("flintmq-broker", "example", name).stdout) > 100, f"flintmq-broker example {name} prints little")
    with LocalBroker(settings={"flush.policy": "sync"}) as broker:
        with Producer(broker.address) as producer:
            for body in BODIES:
                producer.send(Message("orders", body, keys="k", sharding_key="one"))
        broker.kill()
        broker.start()
        check([message.body for message in broker.drain("orders")] == BODIES, "messages are missing after a kill")
        with Consumer(broker.address) as consumer:
            check(len(list(consumer.query("orders", key="k"))) == len(BODIES), "the index does not find them")
        broker.stop()
        done = run("flintmq-broker", "verify", str(broker.store))
        check(done.returncode == 0, f"the store is not sound: {done.stdout}{done.stderr}")
    caches = list(Path(flintmq.__file__).parent.rglob("__kernelcache__"))
    check(not caches, f"kernels are cached in the environment: {caches}")


if __name__ == "__main__":
    kind, version = sys.argv[1:]
    try_client(version) if kind == "client" else try_broker()
