"""Executes the Dockerfile in a folder, with this machine's Python instead of the base image, and tests the result.

This shows that the build context is complete, that every command succeeds, that the final stage gets all it needs from
the one before, that the entrypoint refuses to listen to strangers unless told to, and that the broker is healthy by its
HEALTHCHECK, stores and returns a message, and stops gracefully on its STOPSIGNAL.

It cannot test the base image, its user and its architecture. Absolute paths are mapped into the folder; ``useradd`` and
USER have no effect, and ``install`` keeps the owner.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

from dockerfile import Instruction, NotUnderstood, context_files, parse

ROOT = Path(__file__).resolve().parents[2]
MAPPED = ("opt", "src", "var")
"""Folders of the image that are mapped into the folder; all others are the machine's."""
MACHINE = ("bin", "dev", "usr")
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 10
EXIT_CONFIGURATION = 2

_PATH = re.compile(r"(?<![\w./$}-])/([a-z]+)(?=[/\s:'\"]|$)")

_ROUND_TRIP = """
import sys
from flintmq.client import Consumer, Message, Producer
with Producer(sys.argv[1]) as producer, Consumer(sys.argv[1]) as consumer:
    sent = producer.send(Message("image", b"hello", keys=["k"]))
    batch = consumer.pull("image", queue=sent.queue, offset=sent.queue_offset, wait_ms=10_000)
    assert [message.body for message in batch] == [b"hello"], "another message came back"
"""


class StepFailed(Exception):
    """Error: a step, or the test after the steps, failed."""


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)


class Image:
    """Folder that replaces the file system of an image, and the environment of its processes."""

    def __init__(self, work: Path, python: str) -> None:
        self._work = work
        self.folder = work / "image"
        self._shims = work / "shims"
        self._stages: dict[str, Path] = {}
        self._stage = ""
        self._cwd = self.folder
        self._shims.mkdir(parents=True)
        base = subprocess.run(
            [python, "-c", "import sys; print(sys._base_executable)"], check=True, capture_output=True, text=True
        )
        (self._shims / "python").symlink_to(base.stdout.strip())
        self._shim("useradd", "exit 0\n")
        self._shim(
            "install",
            'for word do shift; case $word in -o|-g) skip=1;; *) [ "${skip:-}" ] || set -- "$@" "$word"; skip=;; esac; '
            'done\nexec /usr/bin/install "$@"\n',
        )
        self.environment: dict[str, str] = {}

    def _shim(self, name: str, script: str) -> None:
        path = self._shims / name
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)

    def at(self, path: str) -> Path:
        """Return the location of a path of the image; a relative path is relative to WORKDIR."""
        return Path(self.mapped(path)) if path.startswith("/") else self._cwd / path

    def mapped(self, text: str) -> str:
        """Map the image's absolute paths in ``text`` into the folder. Raises ``NotUnderstood`` for others."""

        def replace(match: re.Match[str]) -> str:
            if match[1] in MACHINE:
                return match[0]
            if match[1] not in MAPPED:
                raise NotUnderstood(f"/{match[1]} is neither a folder of the image nor of the machine: {text[:100]}")
            return f"{self.folder}/{match[1]}"

        return _PATH.sub(replace, text)

    def execute(self, step: Instruction) -> None:
        """Execute one instruction."""
        say(f"{step.name} {step.text}"[:150])
        method = getattr(self, f"_{step.name.lower()}", None)
        if method is not None:
            method(step)

    def _from(self, step: Instruction) -> None:
        if self.folder.exists():  # the files of the previous stage are visible only if COPY takes them
            put_away = self._stages[self._stage] = self._work / f"stage-{len(self._stages)}"
            self.folder.rename(put_away)
        words = step.words()
        self._stage = words[2] if len(words) == 3 else ""
        self.folder.mkdir()
        self._cwd = self.folder
        # Keep only the variables that every process needs, and the settings for package indexes.
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "http"))}
        home = self._work / "home"
        home.mkdir(exist_ok=True)
        for name in (".config/pip", ".pip"):
            if (Path.home() / name).is_dir() and not (home / name).exists():
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).symlink_to(Path.home() / name)
        self.environment = {**kept, "PATH": f"{self._shims}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}

    def _env(self, step: Instruction) -> None:
        for word in step.words():
            name, _, value = word.partition("=")
            for known, content in self.environment.items():
                value = value.replace(f"${known}", content) if value.endswith(f"${known}") else value
            self.environment[name] = ":".join(
                part if Path(part).is_relative_to(self._work) else self.mapped(part) for part in value.split(":")
            )

    def _workdir(self, step: Instruction) -> None:
        self._cwd = self.at(step.text)
        self._cwd.mkdir(parents=True, exist_ok=True)

    def _copy(self, step: Instruction) -> None:
        *options, source, target = step.words()
        if options:
            stage = self._stages[options[0].removeprefix("--from=")]
            shutil.copytree(stage / source.lstrip("/"), self.at(target), symlinks=True)
        elif (source, target) == (".", "."):
            for path in context_files(ROOT):
                (self._cwd / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, self._cwd / path)
        else:
            raise NotUnderstood(f"COPY {step.text}")

    def _run(self, step: Instruction) -> None:
        # In shell form, as /bin/sh -c of the image would run it.
        done = subprocess.run(
            ["/bin/sh", "-ec", self.mapped(step.text)], cwd=self._cwd, env=self.environment, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            raise StepFailed(f"RUN {step.text}: exit {done.returncode}")

    def command(self, words: list[str]) -> list[str]:
        """Return a command of the image as a command of this machine."""
        executable = shutil.which(self.mapped(words[0]), path=self.environment["PATH"])
        if executable is None:
            raise StepFailed(f"the image has no {words[0]}")
        return [executable, *map(self.mapped, words[1:])]


def one(steps: list[Instruction], name: str) -> Instruction:
    """Return the last instruction with the name."""
    found = [step for step in steps if step.name == name]
    if not found:
        raise StepFailed(f"the Dockerfile has no {name}")
    return found[-1]


def test_image(image: Image, steps: list[Instruction]) -> None:
    """Start the entrypoint, check its health, send a message and stop it."""
    entrypoint = image.command(one(steps, "ENTRYPOINT").exec_form())
    refused = subprocess.run(entrypoint, env=image.environment, capture_output=True, text=True, timeout=60)
    if refused.returncode != EXIT_CONFIGURATION or "--insecure" not in refused.stderr:
        raise StepFailed(f"without --insecure the entrypoint must refuse; exit {refused.returncode}: {refused.stderr}")
    say("the entrypoint refuses to listen to strangers")
    # This is no container: do not touch the machine's own ports and network.
    here = ["--listen", "127.0.0.1:0", "--set", "metrics.listen=127.0.0.1:0"]
    with subprocess.Popen(
        [*entrypoint, *here], env=image.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as broker:
        watchdog = threading.Timer(START_SECONDS_MAX, broker.kill)
        watchdog.start()
        try:
            address, metrics = addresses(broker)
            check_health(image, steps, metrics)
            python = image.command(["python", "-c", _ROUND_TRIP, address])
            subprocess.run(python, env=image.environment, check=True, timeout=60)
            say("the broker stored a message and returned it")
            began = time.monotonic()
            broker.send_signal(signal.Signals[one(steps, "STOPSIGNAL").text])
            if broker.wait(STOP_SECONDS_MAX) != 0:
                raise StepFailed(f"the broker stopped with exit {broker.returncode}")
            say(f"it stopped gracefully in {time.monotonic() - began:.1f} s")
        finally:
            watchdog.cancel()
            broker.kill()


def addresses(broker: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait until the broker listens; return its address and that of its metrics."""
    output: deque[str] = deque(maxlen=50)
    metrics = ""
    assert broker.stdout is not None
    for line in broker.stdout:
        output.append(line)
        if "kernels (" in line:
            raise StepFailed("the broker compiles the image's kernels again at its start")
        if match := re.search(r"metrics: http://(\S+)/metrics", line):
            metrics = match[1]
        if match := re.search(r"listening on (\S+)", line):
            say(f"started on {match[1]}")
            return match[1], metrics
    raise StepFailed("the broker did not start:\n" + "".join(output))


def check_health(image: Image, steps: list[Instruction], metrics: str) -> None:
    """Run the image's health check with the port that the broker has here."""
    declared = image.environment["FLINTMQ_METRICS__LISTEN"].rpartition(":")[2]
    words = one(steps, "HEALTHCHECK").exec_form()
    asked = [word.replace(f"127.0.0.1:{declared}", metrics) for word in words]
    if asked == words:
        raise StepFailed(f"the health check does not use port {declared} of the metrics: {words}")
    subprocess.run(image.command(asked[:1]) + asked[1:], env=image.environment, check=True, timeout=30)
    say("the health check passes")


def main() -> int:
    """Execute and test the Dockerfile; return the exit code."""
    parser = argparse.ArgumentParser(prog="./scripts/dockerfile-steps", description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="Python to use instead of the base image's")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR and keep the result")
    options = parser.parse_args()
    steps = parse((ROOT / "Dockerfile").read_text())
    work = options.keep.resolve() if options.keep else Path(tempfile.mkdtemp(prefix="flintmq-image-"))
    try:
        image = Image(work, options.python)
        for step in steps:
            image.execute(step)
        test_image(image, steps)
    except (NotUnderstood, StepFailed, subprocess.SubprocessError) as failure:
        print(f"dockerfile-steps: {failure}", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(work)
    say("every step of the Dockerfile works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
