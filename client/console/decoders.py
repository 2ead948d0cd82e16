"""Decoders of bodies that other packages install: entry points of the group ``flintmq.decoders``.

A decoder is a function that takes the bytes of a body and returns text. It runs in the console's process, so it is
trusted as much as any installed package; the bodies that it gets are not. Its text is shown as text, never as markup.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import re
import threading
from importlib.metadata import EntryPoint, entry_points

from ..application_code import described
from .bodies import SHOWN_BYTES_MAX, VIEWS, BodyView, visible_text

GROUP = "flintmq.decoders"
DECODED_BYTES_MAX = 1024 * 1024
"""Maximum size of a body that a decoder gets."""
DECODE_SECONDS = 2.0
"""Seconds for which a page waits for a decoder."""
RUNNING_MAX = 4
"""Maximum number of decoders at work, those that a page no longer waits for included: a thread cannot be stopped."""
REASON_CHARS_MAX = 1_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")


class DecoderFailed(Exception):
    """Error: a decoder did not return text; the message has the reason."""


class Decoders:
    """The decoders that are installed, by the names of their entry points."""

    def __init__(self) -> None:
        self._running = 0

    @functools.cached_property
    def by_name(self) -> dict[str, EntryPoint]:
        """The entry points with usable names. They are looked up, and loaded, when a message needs them first: a start
        must not wait for what other packages import."""
        found = {point.name: point for point in entry_points(group=GROUP)}
        return {name: found[name] for name in sorted(found) if _NAME.fullmatch(name) and name not in VIEWS}

    async def apply(self, view: BodyView, wanted: str, body: bytes) -> BodyView:
        """Return a view with the decoders among its choices, and with the text of the wanted one if it is one."""
        view = dataclasses.replace(view, views=(*view.views, *self.by_name))
        if wanted not in self.by_name:
            return view
        try:
            text = await self._decode(wanted, body)
        except DecoderFailed as error:
            text = f"(the decoder {wanted} failed: {error})"
        shown = visible_text(text[:SHOWN_BYTES_MAX].encode("utf-8", "backslashreplace"))
        return dataclasses.replace(view, name=wanted, text=shown, is_whole=len(text) <= SHOWN_BYTES_MAX)

    async def _decode(self, name: str, body: bytes) -> str:
        if len(body) > DECODED_BYTES_MAX:
            raise DecoderFailed(f"the body has {len(body):,} bytes, and a decoder gets at most {DECODED_BYTES_MAX:,}")
        if self._running >= RUNNING_MAX:
            raise DecoderFailed(f"{self._running} decoders are still at work; try again later")
        loop = asyncio.get_running_loop()
        result: asyncio.Future[str] = loop.create_future()

        def finish(text: object, reason: str) -> None:
            self._running -= 1
            if result.done():  # nothing waits for it any more
                return
            if isinstance(text, str) and not reason:
                result.set_result(text)
            else:
                result.set_exception(DecoderFailed(reason or f"it returned {type(text).__name__}, not str"))

        def run() -> None:
            text, reason = None, ""
            try:
                text = self.by_name[name].load()(body)
            except BaseException as error:  # noqa: BLE001 - foreign code may raise anything, SystemExit included
                reason = described(error)[:REASON_CHARS_MAX]
            with contextlib.suppress(RuntimeError):  # the console has stopped meanwhile
                loop.call_soon_threadsafe(finish, text, reason)

        self._running += 1
        # A daemon: a decoder that never returns must not keep the process from ending.
        threading.Thread(target=run, name=f"decoder {name}", daemon=True).start()
        try:
            async with asyncio.timeout(DECODE_SECONDS):
                return await result
        except TimeoutError:
            raise DecoderFailed(f"it takes longer than {DECODE_SECONDS:.0f} s") from None
