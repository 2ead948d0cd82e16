"""The Dockerfile agrees with the code. That it builds is checked with ``docker build`` before a release."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

from flintmq.broker.config_sources import load_settings

ROOT = Path(__file__).parents[2]
LINES = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
STEPS = [line.split(" ", 1) for line in LINES.splitlines() if line]


def last(name: str) -> str:
    return [text for step, text in STEPS if step == name][-1]


def test_the_broker_is_process_one_and_gets_the_signal() -> None:
    assert json.loads(last("ENTRYPOINT"))[:2] == ["flintmq-broker", "serve"]
    assert last("STOPSIGNAL") == "SIGTERM"


def test_the_broker_runs_as_an_unprivileged_user_on_a_volume() -> None:
    names = [name for name, _ in STEPS]
    assert last("USER") == "flintmq"
    assert names.index("USER") < names.index("ENTRYPOINT")
    entrypoint = json.loads(last("ENTRYPOINT"))
    assert entrypoint[entrypoint.index("--store") + 1] == last("VOLUME")


def test_the_image_compiles_the_kernels_for_any_processor() -> None:
    generic = next(number for number, (_, text) in enumerate(STEPS) if "NUMBA_CPU_NAME=generic" in text)
    assert STEPS[generic][0] == "ENV"
    assert generic < STEPS.index(["RUN", "flintmq-broker warm"])


def test_the_health_check_uses_the_port_that_the_settings_open() -> None:
    variables = dict(word.split("=", 1) for word in shlex.split(last("ENV")))
    listen = load_settings(config=None, environment=variables, assignments=(), flags={}).metrics.listen
    port = listen.rpartition(":")[2]
    assert f"http://127.0.0.1:{port}/healthz" in last("HEALTHCHECK")
    entrypoint = json.loads(last("ENTRYPOINT"))
    broker_port = entrypoint[entrypoint.index("--listen") + 1].rpartition(":")[2]
    assert last("EXPOSE").split() == [broker_port, port]


def test_the_build_gets_the_package_and_nothing_else() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {name.split("/")[0] for name in wheel["only-include"]}
    files = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == folders | files
    assert {"**/__pycache__", "**/*.py[cod]", "**/__kernelcache__"} <= set(rules[1:])
