"""Messages of an installation without extras about the functions it lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = "import sys; sys.modules.update(dict.fromkeys({names!r}))\n"
DAEMON = "from flintmq.broker.app.daemon import main; main(prog_name='flintmq-broker')"


def run_without(names: tuple[str, ...], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that has none of the packages ``names``."""
    command = [sys.executable, "-c", HIDDEN.format(names=names) + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "arguments", [["serve", "--listen", "127.0.0.1:0"], ["verify", "."], ["stat", "."], ["backup", ".", "b"], ["warm"]]
)
@pytest.mark.parametrize("names", [("numba",), ("numba", "numpy", "pydantic")])
def test_the_broker_names_the_missing_extra(tmp_path: Path, arguments: list[str], names: tuple[str, ...]) -> None:
    if arguments[0] == "serve":
        arguments = [*arguments, "--store", str(tmp_path / "store")]
    done = run_without(names, DAEMON, *arguments)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"not installed ({', '.join(names)})" in done.stderr
    assert "pip install 'flintmq[broker]'" in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("command", ["console", "dev --console 127.0.0.1:0"])
@pytest.mark.parametrize("name", ["jinja2", "starlette", "uvicorn"])
def test_the_console_names_the_missing_extra(command: str, name: str) -> None:
    done = run_without((name,), "from flintmq.client.cli.main import main; main()", *command.split())
    assert done.returncode == 2, done.stderr
    assert f"not installed ({name})" in done.stderr
    assert "pip install 'flintmq[console]'" in done.stderr


def test_help_needs_no_extra() -> None:
    done = run_without(("numba", "numpy", "pydantic"), DAEMON, "serve", "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "url", "reason"),
    [("obstore", "s3://bucket/history", "needs obstore"), ("zstandard", "history", "Zstandard needs")],
)
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Zstandard is part of Python")
def test_the_broker_starts_without_the_archive_extra_and_names_it_for_an_archive(
    tmp_path: Path, name: str, url: str, reason: str
) -> None:
    arguments = ["serve", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store")]
    done = run_without((name,), DAEMON, *arguments, "--set", f"archive.url={url}")
    assert done.returncode == 2, done.stderr
    assert reason in done.stderr
    assert "pip install 'flintmq[archive]'" in done.stderr
    assert not (tmp_path / "store").exists()
