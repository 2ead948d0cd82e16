"""The jars of Kafka's broker and of Spark's Kafka connector, and the programs compiled against them.

Maven keeps the jars in its own cache; their paths and the compiled programs are in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..measure import Skipped

FOLDER = Path(__file__).parent
JDK_MIN = 17
FETCH_SECONDS_MAX = 300.0
COMPILE_SECONDS_MAX = 120.0
ALONE = "not asked for (--alone)"
"""Reason for the missing jars."""

_SOON_DONE = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a Java process that runs only for seconds."""
_BROUGHT_BY_THE_CONNECTOR = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
"""Jars that Spark's own folder lacks; no other jar may precede Spark's on the class path."""
_BROKER, _CONNECTOR = "broker.class-path", "connector.class-path"


@dataclass(frozen=True, slots=True)
class Jars:
    """Class paths. ``broker``: of Kafka and of the programs here; ``connector``: additions to Spark's class path, empty
    without Spark."""

    broker: str
    connector: str

    @property
    def kafka_version(self) -> str:
        """Version of the broker."""
        return _version(self.broker, "kafka-server")

    @property
    def connector_version(self) -> str:
        """Version of Spark's connector; the registry may not have the one for the newest Spark."""
        return _version(self.connector, "spark-sql-kafka-0-10_2.13")


def get_jars(spark_version: str | None) -> Jars:
    """Return the jars for Spark ``spark_version`` (None: only Kafka's); they are fetched and compiled once.

    Raises ``Skipped`` if they are unavailable.
    """
    _check_programs()
    sources = [FOLDER / "pom.xml", *sorted(FOLDER.glob("*.java"))]
    content = b"\0".join([(spark_version or "").encode(), *(source.read_bytes() for source in sources)])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flintmq"
    made = cache / f"kafka-{hashlib.sha256(content).hexdigest()[:16]}"
    wanted = [_BROKER] if spark_version is None else [_BROKER, _CONNECTOR]
    if not _complete(made, wanted):
        shutil.rmtree(made, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            folder = Path(scratch) / "made"
            folder.mkdir()
            _fetch_broker(folder)
            if spark_version is not None:
                _fetch_connector(folder, spark_version)
            _compile(folder, sources[1:])
            folder.rename(made)
    broker, *connector = ((made / name).read_text() for name in wanted)
    return Jars(os.pathsep.join([str(made), broker]), "".join(connector))


def _check_programs() -> None:
    for program, package in (("java", "a JDK"), ("javac", "a JDK"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise Skipped(f"`{program}` is not on PATH; install {package} to compare with Kafka")
    said = subprocess.run(["javac", "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    version = re.match(r"javac (\d+)", said)
    if version is None or int(version[1]) < JDK_MIN:
        raise Skipped(f"the JDK on PATH is older than {JDK_MIN} ({said.strip()}); install a newer one for Kafka")


def _complete(made: Path, wanted: list[str]) -> bool:
    paths = [made / name for name in wanted]
    return all(path.exists() and all(map(os.path.exists, path.read_text().split(os.pathsep))) for path in paths)


def _fetch_broker(folder: Path) -> None:
    if said := _class_path("broker", folder / _BROKER):
        raise Skipped(f"Maven cannot get Kafka's jars; is there a network? {said}")


def _fetch_connector(folder: Path, spark_version: str) -> None:
    needed = f"-DincludeArtifactIds={_BROUGHT_BY_THE_CONNECTOR}"
    if _class_path("connector", folder / _CONNECTOR, f"-Dspark.version={spark_version}", needed) and (
        said := _class_path("pinned-connector", folder / _CONNECTOR)
    ):
        raise Skipped(f"Maven cannot get Spark's Kafka connector; is there a network? {said}")


def _class_path(profile: str, to: Path, *options: str) -> str:
    """Write a profile's class path to a file; return Maven's output if that fails."""
    command = ["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), "-P", profile, "dependency:build-classpath"]
    command += [f"-Dmdep.outputFile={to}", "-Daether.connector.connectTimeout=10000", *options]
    environment = {"MAVEN_OPTS": " ".join(_SOON_DONE), **os.environ}
    try:
        fetched = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"it was not done within {FETCH_SECONDS_MAX:.0f} s"
    if fetched.returncode == 0 and to.exists():
        return ""
    errors = [line.partition("[ERROR] ")[2] for line in fetched.stdout.splitlines() if "[ERROR]" in line]
    return errors[0] if errors else fetched.stderr[-300:] or f"it ended with {fetched.returncode}"


def _compile(folder: Path, sources: list[Path]) -> None:
    command = ["javac", *(f"-J{option}" for option in _SOON_DONE), "-proc:none", "-nowarn", "-encoding", "UTF-8"]
    command += ["-cp", (folder / _BROKER).read_text(), "-d", str(folder), *map(str, sources)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS_MAX)
    if compiled.returncode:
        raise Skipped(f"the programs that run and fill Kafka do not compile: {compiled.stderr[-500:]}")


def _version(class_path: str, artifact: str) -> str:
    found = re.search(rf"[/\\]{re.escape(artifact)}-(\d[^/\\]*)\.jar", class_path)
    return found[1] if found else "of unknown version"
