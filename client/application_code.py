"""Errors of the application's code where a client calls it: it may raise anything at all.

Listeners, checks of transactions, callbacks, decoders, password functions and propagators are called where an error
must not end the client: it costs the attempt, even if it is no ``Exception``.
"""

from __future__ import annotations

import threading


def ends_program(error: BaseException) -> bool:
    """Return whether an error is raised again once its attempt is counted: Ctrl-C and ``sys.exit`` end the program if
    they are raised in the main thread, and there alone."""
    return isinstance(error, KeyboardInterrupt | SystemExit) and threading.current_thread() is threading.main_thread()


def described(error: BaseException) -> str:
    """Return type and first line of an error, ``ValueError: no such account``, even if its text cannot be had."""
    try:
        first_line = next(iter(str(error).splitlines()), "")
    except BaseException as failure:  # noqa: BLE001 - a broken __str__ must not end the client
        first_line = f"its text is not available ({type(failure).__name__})"
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
