"""The image: its kernels are compiled when it is built, where its broker looks for them and for any processor.

No image is built here; what its ``RUN`` does is done with its environment. See also CONTRIBUTING, "Releases".
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.protocol.storage.arrays import jit
from flintmq.protocol.storage.arrays.kernel_caches import CACHE_VARIABLE
from flintmq.testing.started_broker import DAEMON
from tests.conftest import BrokerFactory
from tests.metrics_tools import Scrape

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")
LAST_STAGE = re.sub(r"\\\n", "", DOCKERFILE).split("\nFROM ")[-1]
STEPS = [line.split(maxsplit=1) for line in LAST_STAGE.splitlines()[1:] if line and not line.startswith("#")]
COMPILING = ["RUN", "flintmq-broker warm"]

CACHE_KEY = "from numba.core.registry import cpu_target; print(cpu_target.target_context.codegen().magic_tuple())"
"""Prints what Numba's cache distinguishes processors by: architecture, name of the processor, its features."""


def environment() -> dict[str, str]:
    """Return the variables that the image sets."""
    return dict(pair.split("=", 1) for kind, text in STEPS if kind == "ENV" for pair in shlex.split(text))


def test_the_kernels_are_compiled_as_the_user_and_in_the_environment_of_the_broker() -> None:
    place = STEPS.index(COMPILING)
    before, after = STEPS[:place], STEPS[place + 1 :]
    user = next(text for kind, text in reversed(before) if kind == "USER")
    assert not [step for step in after if step[0] in {"ENV", "USER", "COPY", "RUN"}], "nothing changes them afterwards"
    (made,) = [text for kind, text in before if kind == "RUN"]
    folder = environment()[CACHE_VARIABLE]
    assert re.search(rf"install -d -m 0700 -o {user} -g {user} .*{re.escape(folder)}(?!\S)", made)
    # A volume would hide them.
    assert folder not in " ".join(text for kind, text in STEPS if kind == "VOLUME")


def test_the_kernels_fit_any_processor_of_the_architecture() -> None:
    variables = {**os.environ, "NUMBA_CPU_NAME": environment()["NUMBA_CPU_NAME"]}
    done = subprocess.run(
        [sys.executable, "-c", CACHE_KEY], env=variables, capture_output=True, text=True, timeout=100, check=True
    )
    assert re.fullmatch(r"\('[\w-]+', 'generic', ''\)", done.stdout.strip())


@pytest.mark.long(seconds=90)
@pytest.mark.timeout(400)
@pytest.mark.skipif(jit.INTERPRETED, reason="nothing is compiled")
def test_a_broker_finds_every_kernel_that_the_image_brings(broker: BrokerFactory, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    taken = ("NUMBA_CPU_NAME", CACHE_VARIABLE)
    variables = {name: value for name, value in environment().items() if name in taken} | {CACHE_VARIABLE: str(cache)}
    program, *arguments = shlex.split(COMPILING[1])
    assert program == "flintmq-broker"
    subprocess.run([sys.executable, *DAEMON, *arguments], env=os.environ | variables, timeout=390, check=True)
    compiled = sorted(cache.rglob("*.nbc"))
    running = broker(environment=variables)
    assert Scrape(running)("flintmq_interpreted_kernels") == 0
    assert not any(line.startswith(("kernels: ", "first start: ")) for line in running.output)
    assert running.stop() == 0
    assert sorted(cache.rglob("*.nbc")) == compiled
