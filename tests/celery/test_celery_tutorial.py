"""The tutorial ``docs/tutorials/celery.md`` as a reader follows it: its files, commands and outputs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.celery.conftest import Worker
from tests.conftest import BrokerFactory
from tests.group_tools import until
from tests.integration.test_documents import blocks

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "celery.md"


def test_the_tutorial_does_what_it_says(broker: BrokerFactory, celery_python: Path, tmp_path: Path) -> None:
    address = broker().address
    tasks, first = blocks(TUTORIAL, "python")
    (printed,) = blocks(TUTORIAL, "text")
    install, start, ask, look, _ = (block.splitlines() for block in blocks(TUTORIAL, "sh"))
    assert (install[0][:4], start[0]) == ("pip ", "flintmq-broker serve")
    (tmp_path / "tasks.py").write_text(tasks.replace("127.0.0.1:10911", address), encoding="utf-8")
    (tmp_path / "first.py").write_text(first, encoding="utf-8")
    folders = f"{celery_python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        "PATH": folders,
        "HOME": str(tmp_path),
        "FLINTMQ_BROKER": address,
        "C_FORCE_ROOT": "1",
        "PYTHONUNBUFFERED": "1",
    }

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    worker = Worker(shlex.split(start[1]), environment, tmp_path).ready()
    try:
        assert run("python", "first.py") == printed
        assert "one@shop: OK" in run(*shlex.split(ask[0]))
        until(lambda: "bill-o-13" in run(*shlex.split(look[2])), "the rejected task is a dead letter")
        status, found, _, resent = (run(*shlex.split(command)) for command in look)
        assert "one" in status or "celery" in status
        assert "bill-o-13" in found
        assert "1" in resent
    finally:
        worker.stop()
