# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Closing pyverbs objects of a device that may refuse it."""

from __future__ import annotations

import ctypes
from typing import Any

from pyverbs.pyverbs_error import PyverbsError


def never_collect(resource: Any) -> None:
    """Keep an object from the garbage collector for good.

    pyverbs closes what is collected, at any moment and with no one to hear the error: a device that refused once would
    be asked again in the middle of something else, and the interpreter be left with an exception that nobody raised.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(resource))


def close(resource: Any) -> PyverbsError | None:
    """resource.close(); the error if the device refuses, after which the object is left alone for good."""
    try:
        resource.close()
    except PyverbsError as error:
        never_collect(resource)
        return error
    return None
