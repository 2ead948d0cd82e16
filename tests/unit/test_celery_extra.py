"""Celery's transport is an extra."""

from __future__ import annotations

import subprocess
import sys


def test_without_kombu_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['kombu'] = None; import flintmq.client.celery"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    said = "ModuleNotFoundError: flintmq.client.celery needs kombu"
    assert done.stderr.splitlines()[-1].startswith(said)
    assert "pip install 'flintmq[celery]'" in done.stderr
