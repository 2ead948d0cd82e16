"""How the tests are shared out to several processes, and in which order: what takes long comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SPARK_FOLDER = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that share the Spark session come first, then the files with slow ones: none is left for the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (SPARK_FOLDER not in item.path.parents, item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file run in one process, and all that share the Spark session in one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.split("::", 1)[0]
            return "spark" if file.startswith("tests/spark/") else file

    return ByFile(config, log)
