"""The banner that a start prints to standard output."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from flintmq.broker.app.daemon import _load_kernels
from flintmq.broker.app.output import Banner
from flintmq.broker.config import Settings, load_settings
from flintmq.broker.kernels import SERVING_MODULES
from flintmq.broker.store import RecoveryReport


@pytest.mark.parametrize("path", ["./flintmq-store", "flintmq-store", "a/../flintmq-store"])
def test_the_banner_shows_the_full_path_of_the_store(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()
    settings = load_settings(config=None, environment={}, assignments=(), flags={"store.path": path})
    Banner(stream).ready(settings, "1.0", 7, ("127.0.0.1", 10911), "", RecoveryReport(clean=True))
    shown = re.search(r"^store: (.*)$", stream.getvalue(), re.MULTILINE)
    assert shown is not None
    assert Path(shown[1]).is_absolute()
    assert Path(shown[1]).resolve() == (tmp_path / "flintmq-store").resolve()


def test_progress_with_the_kernels_says_how_many_there_are() -> None:
    said: list[tuple[int, int]] = []

    class Recorder(Banner):
        def progress(self, stage: str, done: int, total: int) -> None:
            said.append((done, total))

    _load_kernels(Recorder(io.StringIO()))
    count = len(SERVING_MODULES)
    assert said == [(done, count) for done in range(1, count + 1)]


def test_the_store_that_a_broker_makes_in_a_clone_is_ignored_by_git() -> None:
    root = Path(__file__).parents[2]
    default = Path(Settings().store.path).name
    assert f"/{default}/" in (root / ".gitignore").read_text().splitlines()
