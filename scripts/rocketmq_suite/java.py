"""A class path of RocketMQ's jars, and Java processes on it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
FETCH_SECONDS_MAX = 600.0
COMPILE_SECONDS_MAX = 300.0
SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m")
"""Options of a process that lives for seconds or minutes beside many others."""


class Unavailable(Exception):
    """Error: a program, a package or a folder that a suite needs is missing. The message says what to do."""


def need_programs(*programs: str) -> None:
    """Raise ``Unavailable`` if one of the programs is not on PATH."""
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(f"`{program}` is not on PATH; install it")


def fetch_class_path(work: Path, pom: Path = FOLDER / "pom.xml", release: str = "") -> str:
    """Let Maven fetch the jars that ``pom`` names, and return their class path. Raises ``Unavailable``.

    ``release``: of RocketMQ, in place of the one in ``pom``.
    """
    need_programs("java", "javac", "mvn")
    written = work / f"{pom.parent.name}{release}-class-path"
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={written}"]
    command += [f"-Drocketmq.version={release}"] if release else []
    fetched = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False)
    if fetched.returncode or not written.exists():
        said = [line for line in fetched.stdout.splitlines() if "[ERROR]" in line]
        raise Unavailable(f"Maven cannot fetch the jars; is there a network? {said[0] if said else fetched.stderr}")
    return written.read_text().strip()


def compile_java(sources: Iterable[Path], classes: str, to: Path) -> str:
    """Compile into the folder ``to`` and return the class path with it in front. Raises ``Unavailable``."""
    to.mkdir(parents=True, exist_ok=True)
    arguments = to.parent / f"{to.name}.sources"
    arguments.write_text("\n".join(map(str, sources)))
    command = ["javac", "-J-XX:+UseSerialGC", "-proc:none", "-nowarn", "-encoding", "UTF-8"]
    command += ["-cp", classes, "-d", str(to), f"@{arguments}"]
    compiled = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False)
    if compiled.returncode:
        raise Unavailable(f"javac does not accept the sources: {compiled.stderr[:2000]}")
    return f"{to}{os.pathsep}{classes}"


def java_command(classes: str, home: Path, main: str, arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the command of a Java process whose logs and temporary files are below ``home``, which is created."""
    home.mkdir(parents=True, exist_ok=True)
    folders = [f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", f"-Drocketmq.client.logRoot={home}/logs"]
    return ["java", *SMALL, "-Dfile.encoding=UTF-8", *folders, *options, "-cp", classes, main, *arguments]
