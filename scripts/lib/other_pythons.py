"""Runs tests with another Python of the machine, in an environment of its own with every extra that it can have.

The others are one CPython of each minor version that FlintMQ supports, except that of ``.venv``, whose tests
`scripts/test` runs; and the oldest release of the oldest minor version, which has the least in its standard library:
Debian's, for example. An extra without wheels for a Python is left out by name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from lib import environment  # noqa: E402
from lib.interpreters import interpreters  # noqa: E402

PROCESSES = 3
"""As in `scripts/test`: many tests wait for brokers."""
NEEDED = ("broker", "replication", "test")
"""Extras and groups without which the tests cannot run."""
NOT_TESTED = {*environment.APART, "browser", "demo", "dev", "spark"}
"""Extras and groups that no test below uses: Celery and Spark have tests of their own, and Spark is large."""
TESTS = (
    "tests/unit",
    "tests/property",
    *(
        f"tests/integration/test_{name}.py"
        for name in """
        arrow arrow_reads arrow_scans arrow_sends auth cli_admin cli_groups cli_messages cli_process client_admin
        client_aio client_aio_life client_consume client_failures client_produce client_transactions connections daemon
        delay_levels filters group_consumer group_consumer_life group_lag group_protocol idempotent_client kill9
        local_broker metrics prepared push_consumer push_life push_listeners pytest_plugin remoting_produce
        remoting_pull server tls tools tracing tracing_groups transactions work_queue worker_pool
        """.split()
    ),
)
OF_EXTRAS = {"arrow": ("arrow",), "console": ("console",), "otel": ("tracing",)}
"""Beginnings of the names of test files that are left out with an extra."""
NOT_OF_PYTHON = "docsite how_to_change kernel_interpreted links release shape tidy".split()
"""Unit tests of documents, style and scripts, which are the same with each Python, and one that takes long."""
NO_WHEEL = re.compile(r"No matching distribution found for (.+)|Cannot install (.+?) because|(\S+) has no wheel")
"""Messages of pip and uv about a package that this Python cannot have."""


class CannotTest(Exception):
    """Error: a Python cannot run the tests. The message says why."""


class NoWheel(CannotTest):
    """Error: a package has no wheel for a Python."""


def run(command: Sequence[str | Path], folder: Path) -> int:
    """Run a command with its output shown; return the exit code."""
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=variables(folder)).returncode


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables of commands for the environment in ``folder``."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped} | {"FLINTMQ_VENV": str(folder)}


def install(python: str, folder: Path, extras: Sequence[str]) -> None:
    """Install extras into the environment in ``folder``. Raises ``NoWheel`` or ``CannotTest``."""
    command = [python, str(ROOT / "scripts" / "lib" / "environment.py"), *extras]
    done = subprocess.run(command, cwd=ROOT, env=variables(folder), stdout=-1, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        if missing := NO_WHEEL.search(done.stdout):
            raise NoWheel(f"no wheel of {missing[missing.lastindex or 0]} fits it")
        raise CannotTest(f"its environment cannot be made:\n{done.stdout}")


def set_up(python: str, folder: Path) -> dict[str, str]:
    """Install every extra that this Python can have; return why others are left out, by their names.

    Raises ``CannotTest`` if the tests cannot run without one that is missing.
    """
    known = sorted(environment.parts(environment.pyproject()))
    extras = [name for name in known if name not in NOT_TESTED]
    try:
        install(python, folder, extras)
    except NoWheel:
        left_out = {}
        for name in sorted(extras, key=lambda name: name not in NEEDED):
            try:
                install(python, folder, [name])
            except NoWheel as reason:
                if name in NEEDED:
                    raise
                left_out[name] = str(reason)
        return left_out
    return {}


def tested(python: str, folder: Path) -> dict[str, str]:
    """Run the tests with ``python``; return why extras are left out. Raises ``CannotTest`` if a test fails."""
    left_out = set_up(python, folder)
    if run([folder / "bin" / "flintmq-broker", "warm"], folder):
        raise CannotTest("its kernels cannot be compiled")
    options = ["-q", "-rs", "-p", "no:cacheprovider", "--numprocesses", str(PROCESSES), "--no-loadscope-reorder"]
    options += ["-m", "not long"]
    options += [f"--ignore=tests/unit/test_{name}.py" for name in NOT_OF_PYTHON]
    options += [f"--ignore-glob=*/test_{name}*" for extra in left_out for name in OF_EXTRAS.get(extra, ())]
    if code := run([folder / "bin" / "python", "-m", "pytest", *options, *TESTS], folder):
        raise CannotTest(f"its tests failed (exit {code} of pytest, above)")
    return left_out


def is_listed(release: str) -> bool:
    """Return whether pyproject.toml lists the minor version of a release as supported."""
    minor = release.rpartition(".")[0]
    return f"Programming Language :: Python :: {minor}" in environment.pyproject()["project"]["classifiers"]


def other_pythons() -> dict[str, str]:
    """Return the path of each other Python of the machine by its release, the oldest first."""
    return others(interpreters(), environment.environment_release())


def test(release: str, python: str) -> int:
    """Test one Python and print what was left out; return the exit code. A Python that pyproject.toml does not list
    may lack a package."""
    try:
        left_out = tested(python, ROOT / ".venv" / "pythons" / release)
    except CannotTest as error:
        is_newer = isinstance(error, NoWheel) and not is_listed(release)
        print(f"Python {release}: {'NOT TESTED' if is_newer else 'FAILED'}: {error}", flush=True)
        return int(not is_newer)
    for name, reason in left_out.items():
        print(f"Python {release}: WITHOUT the extra {name!r}: {reason}", flush=True)
    return 0


def others(found: dict[str, str], tested: str) -> dict[str, str]:
    """Return the interpreters without those of the minor version of the release ``tested``; an older release of the
    oldest minor version stays."""
    minor = tested.rpartition(".")[0]
    oldest = next(iter(found), tested)
    return {
        release: path
        for release, path in found.items()
        if release.rpartition(".")[0] != minor or (release == oldest and _numbers(release) < _numbers(tested))
    }


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]
