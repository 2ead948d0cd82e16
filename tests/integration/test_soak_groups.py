"""The soak of consumer groups, for a short time: ``scripts/soak/run groups``.

``FLINTMQ_SOAK_MINUTES`` makes it run longer, ``FLINTMQ_SEED`` makes another run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MINUTES = float(os.environ.get("FLINTMQ_SOAK_MINUTES", "0.1"))
TIMEOUT_S = MINUTES * 60 + 500


def soak(*options: str) -> str:
    """Run the soak and return its output; fail if it fails."""
    seed = os.environ.get("FLINTMQ_SEED", "1")
    done = subprocess.run(
        [sys.executable, "-m", "soak", "groups", "--minutes", str(MINUTES), "--seed", seed, *options],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long(seconds=25)
@pytest.mark.timeout(TIMEOUT_S + 10)
def test_acknowledged_messages_are_handled_in_order_over_stops_and_kills() -> None:
    said = soak("--restart-every", "4", "--change-every", "0.7")

    (counts,) = [line for line in said.splitlines() if "messages acknowledged" in line]
    assert ", 0 the broker stopped" not in counts
    assert "group orderly: every one handled" in said
    assert "group concurrent: every one handled" in said


@pytest.mark.long(seconds=25)
@pytest.mark.timeout(TIMEOUT_S + 10)
def test_without_kills_every_message_is_handled_once_although_members_come_and_go_and_listeners_fail() -> None:
    said = soak("--calm", "--change-every", "0.5")

    assert "group orderly: every one handled, 0 twice" in said
    assert "group concurrent: every one handled, 0 twice" in said
