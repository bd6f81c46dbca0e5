# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How C calls into Python: the verbs by name, the lock around them, and what an exception becomes."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..engine.errors import Refused
from . import c
from .header import Function

_F = TypeVar("_F", bound=Callable[..., Any])

# How a function that does not return an errno says that it failed.
_MINUS_ONE = {
    "ibv_get_cq_event", "ibv_get_async_event", "ibv_query_gid", "ibv_query_pkey", "ibv_query_gid_type",
    "ibv_get_device_index", "ibv_close_device", "ibv_get_pkey_index",
}  # fmt: skip
_NEGATIVE = {"poll_cq", "_ibv_query_gid_table"}
_UNLOCKED = {"ibv_get_cq_event", "ibv_get_async_event"}

verbs: dict[str, Callable[..., Any]] = {}
"""The Python side of each operation, by its name."""


def verb(function: _F) -> _F:
    """Register the Python side of an operation; the function has its name."""
    verbs[function.__name__] = function
    return function


@dataclass
class Failure:
    """An exception inside a verb: a fault of this program, not of its user. The verb failed with EIO."""

    verb: str
    error: BaseException

    def __str__(self) -> str:
        trace = traceback.format_exception(type(self.error), self.error, self.error.__traceback__)
        return f"in {self.verb}:\n{''.join(trace)}"


failures: list[Failure] = []


def attach(function: Function, lock: AbstractContextManager[Any]) -> None:
    """Have the C function of this name call the verb, with the lock held unless it waits for events."""
    name = function.name
    implementation = verbs[name]

    def locked(*arguments: Any) -> Any:
        with lock:
            return implementation(*arguments)

    def failed(kind: type, error: BaseException, trace: Any) -> Any:
        number = errno.EIO
        if isinstance(error, Refused):
            number = error.errno
        elif isinstance(error, (BlockingIOError, InterruptedError)):
            number = error.errno or errno.EAGAIN
        else:
            failures.append(Failure(name, error))
        c.ffi.errno = number
        if function.result == "void":
            return None
        if function.pointer:
            return c.ffi.NULL
        if isinstance(error, Refused) and error.code is not None:
            return error.code
        return -1 if name in _MINUS_ONE else -number if name in _NEGATIVE else number

    c.ffi.def_extern(name=f"python_{name}", onerror=failed)(implementation if name in _UNLOCKED else locked)
