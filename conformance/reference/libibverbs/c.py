# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The compiled C side (binding.py), and the program's memory as it reaches it."""

import errno
import os
from typing import Any

from ..engine.memory import MemoryFault

ffi: Any = None
lib: Any = None
"""Both are None until the library is loaded."""


class ProgramMemory:
    """The memory of this process, by the kernel's hand (engine.memory.Memory)."""

    def read(self, address: int, length: int) -> bytes:
        data = bytearray(length)
        self._check(lib.memory_read(ffi.from_buffer(data), address % 2**64, length), address)
        return bytes(data)

    def write(self, address: int, data: "bytes | memoryview") -> None:
        self._check(lib.memory_write(address % 2**64, ffi.from_buffer(data), len(data)), address)

    def zero(self, address: int, length: int) -> None:
        self._check(lib.memory_zero(address % 2**64, length), address)

    def _check(self, error: int, address: int) -> None:
        if error == errno.EFAULT:
            raise MemoryFault(f"{address:#x}")
        if error:
            raise OSError(error, f"process_vm_readv(2) or process_vm_writev(2): {os.strerror(error)}")
