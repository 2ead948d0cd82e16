"""The extra ``celery``, and the environment of its tests."""

from __future__ import annotations

import tomllib

from packaging.requirements import Requirement

from tests.celery.conftest import REQUIREMENTS, ROOT


def test_the_tests_use_versions_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = map(Requirement, [*project["optional-dependencies"]["celery"], *project["dependencies"]])
    allowed = {requirement.name: requirement.specifier for requirement in needed}
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    pinned = dict(line.split("==") for line in lines)
    assert pinned.keys() >= {"celery", "kombu", "msgpack"}
    for name in allowed.keys() & pinned.keys():
        assert pinned[name] in allowed[name]
