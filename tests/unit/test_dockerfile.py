"""The Dockerfile, as parsed by ``scripts/dockerfile-steps``, which runs its steps."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flintmq.broker.config_sources import load_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    """Return the module ``scripts/lib/dockerfile.py``."""
    spec = importlib.util.spec_from_file_location("dockerfile", ROOT / "scripts" / "lib" / "dockerfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def steps(reader: ModuleType) -> list[Any]:
    found: list[Any] = reader.parse((ROOT / "Dockerfile").read_text())
    return found


def last(steps: list[Any], name: str) -> Any:
    return [step for step in steps if step.name == name][-1]


def test_the_broker_is_process_one_and_gets_the_signal(steps: list[Any]) -> None:
    assert last(steps, "ENTRYPOINT").exec_form()[:2] == ["flintmq-broker", "serve"]
    assert last(steps, "STOPSIGNAL").text == "SIGTERM"


def test_it_runs_as_an_unprivileged_user_on_a_volume(steps: list[Any]) -> None:
    names = [step.name for step in steps]
    assert last(steps, "USER").text == "flintmq"
    assert names.index("USER") < names.index("ENTRYPOINT")
    entrypoint = last(steps, "ENTRYPOINT").exec_form()
    assert entrypoint[entrypoint.index("--store") + 1] == last(steps, "VOLUME").text


def test_the_kernels_are_compiled_for_any_processor_before_they_run(steps: list[Any]) -> None:
    generic = next(number for number, step in enumerate(steps) if "NUMBA_CPU_NAME=generic" in step.text)
    warm = next(number for number, step in enumerate(steps) if step.text == "flintmq-broker warm")
    assert steps[generic].name == "ENV"
    assert generic < warm


def test_the_health_check_asks_the_port_that_the_settings_open(steps: list[Any]) -> None:
    variables = {word.partition("=")[0]: word.partition("=")[2] for word in last(steps, "ENV").words()}
    listen = load_settings(config=None, environment=variables, assignments=(), flags={}).metrics.listen
    port = listen.rpartition(":")[2]
    assert f"http://127.0.0.1:{port}/healthz" in last(steps, "HEALTHCHECK").exec_form()[-1]
    entrypoint = last(steps, "ENTRYPOINT").exec_form()
    broker_port = entrypoint[entrypoint.index("--listen") + 1].rpartition(":")[2]
    assert last(steps, "EXPOSE").words() == [broker_port, port]


def test_the_build_gets_the_package_and_nothing_else(reader: ModuleType) -> None:
    files = {str(path) for path in reader.context_files(ROOT)}
    assert {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "py.typed", "__init__.py"} <= files
    assert {"broker/app/daemon.py", "client/__init__.py", "protocol/frames.py", "conf/broker.toml"} <= files
    tops = {Path(name).parts[0] for name in files}
    assert not tops & {".git", ".venv", "tests", "scripts", "Dockerfile"}
    assert not [name for name in files if "__pycache__" in name or "__kernelcache__" in name or name.endswith(".pyc")]
