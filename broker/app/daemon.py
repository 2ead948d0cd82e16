"""The command ``flintmq-broker``: ``serve`` runs a broker, ``warm`` compiles its kernels beforehand; the tools for a
stopped store are in ``tools/``.

Exit codes: 0 after an orderly stop, 1 if the store or the machine prevents the start, 2 if a setting is invalid, 70 if
the running broker had to end after a failure that it cannot survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click
from click.shell_completion import CompletionItem

from ... import __version__
from ...protocol.display import escape
from ...protocol.errors import ConfigurationError, FlintError
from ...protocol.standard_output import OutputFailed, standard_output
from ..tools.commands import COMMANDS, replica
from .output import Banner, ServiceManager, set_up_logging

if TYPE_CHECKING:
    from ..config import Settings
    from ..store import RecoveryReport
    from .kernel_compiler import KernelCompiler
    from .lifecycle import Lifecycle

log = logging.getLogger(__name__)

EXIT_REFUSED = 1
"""The broker could not start, or a third signal ended it before the store was closed."""
EXIT_CONFIGURATION = 2
"""A setting or an argument is invalid; nothing was started."""
EXIT_FATAL = 70
"""The disk or a part of the broker failed while it served; its log says which. The next start recovers the store."""
SWITCH_INTERVAL_S = 0.0005
"""Maximum time for which a thread that is ready to continue, such as a finished flush, waits for the GIL."""
GC_THRESHOLDS = (50_000, 20, 50)
"""Collections are rare because they find little: requests leave no cycles, and objects of the start are frozen."""
DESCRIPTORS_OF_MACOS = 10_240
"""Maximum number of open files that every macOS allows (``OPEN_MAX``)."""
START_STOP_S = 5.0
"""A start that was told to stop and has not ended after this time is cut off."""


EXTRA_PACKAGES = ("numba", "numpy", "pydantic")
"""Packages of the extra `broker`, which every command except ``--help`` needs."""


class Completed(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """A text that the shell completes with ``words``; the rules of the settings check it later."""

    name = "text"

    def __init__(self, *words: str) -> None:
        self._words = words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words that begin with ``incomplete``."""
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


class _Program(click.Group):
    """The program's commands. A plain installation, meant for clients, has them without the packages they need."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their whole first sentence, which click would cut to fit into one line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(200)) for name in sorted(self.commands)])

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run one command line. Errors show what was typed with its control characters escaped."""
        with standard_output("flintmq-broker"):
            try:
                return super().main(*args, **{"standalone_mode": False, **extra})
            except click.exceptions.NoArgsIsHelpError as error:
                error.show()
                sys.exit(error.exit_code)
            except click.UsageError as error:
                click.UsageError(escape(error.format_message()), error.ctx).show()
                sys.exit(error.exit_code)
            except click.ClickException as error:
                click.ClickException(escape(error.format_message())).show()
                sys.exit(error.exit_code)
            except click.Abort:
                click.echo("Aborted!", err=True)
                sys.exit(EXIT_REFUSED)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError:
            _check_extra()
            raise


def _check_extra() -> None:
    missing = [name for name in EXTRA_PACKAGES if find_spec(name) is None]
    if missing:
        click.echo(
            f"flintmq-broker: the broker needs packages that are not installed ({', '.join(missing)}): run "
            "pip install 'flintmq[broker]', or in a clone pip install '.[broker]'",
            err=True,
        )
        sys.exit(EXIT_REFUSED)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flintmq", prog_name="flintmq-broker")
def main() -> None:
    """FlintMQ's broker."""


@main.command()
@click.option(
    "--store", metavar="DIR", type=click.Path(file_okay=False), help="The store's folder.  [default: ./flintmq-store]"
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address to listen on; port 0: a free one.  [default: 127.0.0.1:10911]"
)
@click.option(
    "--flush",
    metavar="sync|async",
    type=Completed("sync", "async"),
    help="Acknowledge messages when they are on disk, or when they are written.  [default: sync]",
)
@click.option("--warm", is_flag=True, help="Compile the kernels first if need be, instead of beside a slow broker.")
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without authentication.")
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="A TOML file with settings.")
@click.option(
    "--set",
    "assignments",
    metavar="SECTION.NAME=VALUE",
    multiple=True,
    help="Any setting of broker.toml; `flintmq-broker conf DIR` writes that file.",
)
def serve(
    store: str | None,
    listen: str | None,
    flush: str | None,
    warm: bool,
    insecure: bool,
    config: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Run a broker until SIGTERM or Ctrl-C."""
    named: dict[str, object] = {"store.path": store, "server.listen": listen, "flush.policy": flush}
    flags = {name: value for name, value in named.items() if value is not None}
    if insecure:
        flags["server.insecure"] = True
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_before_start)
    banner = Banner(sys.stdout)
    try:
        with _ends_at_once():
            missing = _load_kernels(banner)  # first, because other imports would do it without showing progress
        settings = _settings(config, assignments, flags)
    except ConfigurationError as error:
        _give_up(error, EXIT_CONFIGURATION)
    set_up_logging(settings.log.level, settings.log.format)
    _tune()
    compiler = None
    if missing:
        with _ends_at_once():
            compiler = _compile_kernels(settings, banner, warm)
    sys.exit(_run(settings, banner, compiler))


def _stop_before_start(number: int, stack: object) -> NoReturn:
    # Nothing is open before the event loop handles signals. An exception would be lost in a callback of the compiler.
    os._exit(0)


@contextlib.contextmanager
def _ends_at_once() -> Iterator[None]:
    """Let a signal that has a handler end the process even while the main thread is in compiled code: the compiler's,
    for seconds. Such code delays the handler, but not the thread that waits for the signal's byte."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def wait() -> None:
        if os.read(reader, 1):
            os._exit(0)

    waiting = threading.Thread(target=wait, name="signals", daemon=True)
    waiting.start()
    signal.set_wakeup_fd(writer)
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        os.close(writer)
        waiting.join()
        os.close(reader)


def _settings(config: Path | None, assignments: tuple[str, ...], flags: dict[str, object]) -> Settings:
    from ..config import METRICS_OFF, load_settings

    settings = load_settings(config=config, environment=os.environ, assignments=assignments, flags=flags)
    if not settings.server.insecure:
        if not settings.security.knows_clients:
            _check_loopback("server.listen", settings.server.listen)
            if settings.remoting.listen:
                _check_loopback("remoting.listen", settings.remoting.listen)
        if settings.metrics.listen not in ("", METRICS_OFF) and not settings.metrics.insecure:
            _check_loopback("metrics.listen", settings.metrics.listen)
    return settings


def _check_loopback(name: str, listen: str) -> None:
    from ..addresses import is_loopback, parse_address

    if not is_loopback(parse_address(listen)[0]):
        raise ConfigurationError(
            f"{name} = {listen!r} is reachable from other machines without authentication: " + _REMEDIES[name]
        )


_REMEDIES = {
    "server.listen": "use --set security.auth=scram and create users with `flintmq user add NAME --store DIR`, or "
    "listen on 127.0.0.1, or, if the network is trusted, pass --insecure",
    "remoting.listen": "use --set security.auth=scram and make access keys with `flintmq user key add NAME --store "
    "DIR`, or listen on 127.0.0.1, or, if the network is trusted, pass --insecure",
    "metrics.listen": "listen on 127.0.0.1, or, if the network is trusted, set metrics.insecure or pass --insecure",
}


def _give_up(error: FlintError, code: int) -> NoReturn:
    click.echo(f"flintmq-broker: {escape(str(error))}", err=True)
    sys.exit(code)


# ---- running ----


class StartInterrupted(Exception):
    """A signal arrived while the broker was starting."""


def _run(settings: Settings, banner: Banner, compiler: KernelCompiler | None) -> int:
    async def serve() -> int:
        try:
            return await _serve(settings, banner, compiler)
        finally:
            if compiler is not None:
                compiler.stop()  # while there is the loop, which its thread calls

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(serve())
    except ConfigurationError as error:
        _give_up(error, EXIT_CONFIGURATION)
    except (FlintError, OSError) as error:
        click.echo(f"flintmq-broker: {escape(str(error))}", err=True)
        return EXIT_REFUSED


def _load_kernels(banner: Banner) -> int:
    """Load the kernels; return how many run interpreted because the cache lacks them.

    If no other process could fill the cache, compile them here instead.
    """
    from ...protocol.storage.arrays import jit
    from .. import kernels

    if not jit.only_load(kernels.PACKAGE) and not kernels.any_compiled():
        banner.compiling()
    total = len(kernels.SERVING_MODULES)
    for done, (name, _) in enumerate(kernels.warm(kernels.SERVING_MODULES), 1):
        banner.progress(f"kernels ({name})", done, total)
    return jit.interpreted_count()


def _compile_kernels(settings: Settings, banner: Banner, first: bool) -> KernelCompiler | None:
    """Begin to compile the missing kernels in a process of its own. With ``first``, or if the broker could not work
    with interpreted ones, wait for its end, and return None; end this process if it failed."""
    from .kernel_compiler import KernelCompiler, is_short

    compiler = KernelCompiler()
    # Interpreted, the kernels take too long for a long log, and a member of a replica set could lose its lead.
    if first or settings.replication.set or not is_short(Path(settings.store.path).expanduser() / "commitlog"):
        banner.compiling()
        if not compiler.wait(banner.progress):
            sys.exit(EXIT_REFUSED)
        return None
    return compiler


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # uvloop does not support this system
        return None
    return uvloop.new_event_loop


async def _serve(settings: Settings, banner: Banner, compiler: KernelCompiler | None) -> int:
    from ..addresses import format_address
    from .lifecycle import Lifecycle

    loop = asyncio.get_running_loop()
    lifecycle = Lifecycle(settings, _fatal)
    signals = _Signals(loop, lambda: lifecycle.hurry())
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(lifecycle))
    manager = ServiceManager()

    def progress(stage: str, done: int, total: int) -> None:
        banner.progress(stage, done, total)
        manager.starting(stage, done, total)

    if compiler is not None:
        compiler.start(lambda: loop.call_soon_threadsafe(lambda: lifecycle.use_compiled_kernels()))
    # Beside the wait for a signal, so that a long recovery can be stopped.
    start = loop.create_task(lifecycle.start(signals.or_stop(progress)))
    stopping = loop.create_task(signals.first.wait())
    await asyncio.wait({start, stopping}, return_when=asyncio.FIRST_COMPLETED)
    # A start that is told to stop ends at its next progress report; the next start recovers the store.
    # It works in a thread, which only the end of the process interrupts.
    cut = None if start.done() else loop.call_later(START_STOP_S, os._exit, 0)
    try:
        report = await start
    except StartInterrupted:
        log.info("stopped before the start was complete")
        return 0
    finally:
        if cut is not None:
            cut.cancel()
    if not signals.first.is_set():
        try:
            _ready(settings, banner, lifecycle, report)
        except OutputFailed:
            await lifecycle.stop()
            raise
        manager.ready(format_address(*lifecycle.address))
        while await _has_ended(lifecycle, stopping):
            await lifecycle.stop()
            lifecycle = lifecycle.successor()
            try:
                await lifecycle.start(signals.or_stop(progress))
            except StartInterrupted:
                return 0
    log.info("stopping")
    manager.stopping()
    began = time.monotonic()
    await lifecycle.stop()
    log.info("stopped in %.2f s", time.monotonic() - began)
    return 0


async def _has_ended(lifecycle: Lifecycle, stopping: asyncio.Task[Literal[True]]) -> bool:
    """Wait until the broker must be stopped and started again (True), or until a signal came."""
    ended = asyncio.ensure_future(lifecycle.ended.wait())
    await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    return not stopping.done()


def _reload(lifecycle: Lifecycle) -> None:
    log.info("SIGHUP: reloading users and certificates")
    lifecycle.reload()


def _ready(settings: Settings, banner: Banner, lifecycle: Lifecycle, report: RecoveryReport) -> None:
    from ...protocol.storage.arrays.jit import interpreted_count

    # First, or ``freeze`` would keep the garbage of the start for good.
    gc.collect()
    gc.freeze()  # later collections skip the objects of the start, which live as long as the process
    interpreted = interpreted_count()
    banner.ready(settings, __version__, os.getpid(), lifecycle.address, lifecycle.metrics_address, report, interpreted)
    log.info("ready after %.2f s", time.monotonic() - _STARTED)


class _Signals:
    """Handler of SIGTERM and SIGINT: the first stops orderly, the second cuts connections, the third ends at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hurry: Callable[[], None]) -> None:
        self.first = asyncio.Event()
        self._count = 0
        self._hurry = hurry
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrived, number)

    def _arrived(self, number: int) -> None:
        self._count += 1
        log.info("%s", signal.Signals(number).name)
        self.first.set()
        if self._count == 2:
            self._hurry()
        elif self._count > 2:
            log.warning("ending without closing the store; the next start recovers it")
            logging.shutdown()
            os._exit(EXIT_REFUSED)

    def or_stop(self, progress: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
        """Return ``progress`` wrapped so that it raises ``StartInterrupted`` after a signal."""

        def report(stage: str, done: int, total: int) -> None:
            if self._count:
                raise StartInterrupted
            progress(stage, done, total)

        return report


def _fatal(part: str, error: BaseException) -> None:
    """Log why the broker cannot continue and end at once. The abort file stays, so that the next start recovers."""
    of_a_file = isinstance(error, OSError) and error.filename is not None
    next_step = ". Check the disk, then start the broker again" if of_a_file else ""
    log.critical("%s failed, the broker ends: %s%s", part, error, next_step, exc_info=error)
    # ``os._exit`` itself flushes nothing.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(EXIT_FATAL)


# ---- the process ----

_STARTED = time.monotonic()


def _tune() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # Every connection and every file of the store takes a descriptor.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except ValueError:  # macOS refuses more, although it says that there is no limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(usual, DESCRIPTORS_OF_MACOS), most))


# ---- warm ----


@main.command()
def warm() -> None:
    """Compile the kernels, or check that they are compiled, so that the first start is fast."""
    _check_extra()
    from .kernel_compiler import Compilation

    began = time.monotonic()
    # In a separate process, whose end frees the compiler's memory; and a broken cache cannot crash this one.
    compilation = Compilation()
    try:
        for name, seconds in compilation:
            click.echo(f"kernels: {name} {seconds:.1f} s")
    except (OutputFailed, KeyboardInterrupt):
        compilation.stop()
        raise
    if compilation.exit_code:
        for line in compilation.output:
            click.echo(escape(line), err=True)
        click.echo("flintmq-broker: cannot compile the kernels; see the reason above", err=True)
        sys.exit(EXIT_REFUSED)
    click.echo(f"kernels: ready in {time.monotonic() - began:.1f} s")


for _command in (*COMMANDS, replica):
    main.add_command(_command)

if __name__ == "__main__":
    sys.exit(main())
