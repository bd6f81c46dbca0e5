# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Handlers of signals run before or after a verb, never in the middle of one.

Python runs a handler between two instructions of the main thread. To a program in Python a verb in C is one
instruction; these verbs are many, and a handler that raises (Ctrl-C) would leave one half done: a queue pair that was
made, and nobody has it. Masking signals does not help: whichever thread takes one, it is the main thread that runs the
handler.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from . import c

_set, _get = signal.signal, signal.getsignal


class _Held:
    """A handler that is put off while its thread is in a verb; the signal is raised again when the verb returns."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: object) -> Any:
        return None if c.lib.reference_hold(number) else self.handler(number, frame)


def hold() -> None:
    """Put off the handlers that are set, and those that are set from now on by signal.signal.

    Must be called by the main thread, as signal.signal must. Programs do not see the difference: signal.getsignal
    returns what they set.
    """
    for number in signal.valid_signals():
        if callable(handler := _get(number)):
            _set(number, _Held(handler))
    signal.signal, signal.getsignal = _signal, _getsignal


def _signal(signalnum: int, handler: Any) -> Any:
    return _shown(_set(signalnum, _Held(handler) if callable(handler) else handler))


def _getsignal(signalnum: int) -> Any:
    return _shown(_get(signalnum))


def _shown(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Held) else handler
