# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The device process: programs come and go, write commands and ring doorbells; one thread does it all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from conformance.reference.engine.device import Fabric
from conformance.reference.engine.errors import Refused
from conformance.reference.engine.memory import MemoryFault

from . import netlink
from .device import ConnectX, Options, Program, compose
from .memory import AccessRefusedError, ProgramMemory
from .pump import Pump
from .uverbs import File

_LONGEST_PACKET = 1 << 16
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid

# Seconds without work, and how long to sleep then between two looks. Never not at all: a process that sleeps is let run
# at once when it wakes, and programs that poll leave no processor idle.
_NAPS = ((0.02, 0.00002), (0.2, 0.0005), (1.0, 0.002))
_LONGEST_NAP = 0.005
_PRIORITY = -10
_PR_SET_TIMERSLACK = 29
_TIMER_SLACK = 1000
"""Nanoseconds: the default of 50000 would be most of a short sleep."""


@dataclass
class Left:
    """A program that ended, or closed the device, with objects."""

    pid: int
    command: str
    objects: dict[str, int]

    def __str__(self) -> str:
        held = ", ".join(f"{count} {kind}" for kind, count in sorted(self.objects.items()))
        return f"{self.command} ({self.pid}) left {held}"


@dataclass
class Counts:
    """What happened so far."""

    files: int = 0
    """How often a device was opened."""
    commands: int = 0
    left: list[Left] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Exceptions in the device itself, with their tracebacks; the commands failed with EIO."""


class Connection:
    """A socket of a program. What it is, the first packet says."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid, _, _ = _CREDENTIALS.unpack(
            channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        self.file: File | None = None
        self.netlink = False

    def answer(self, error: int) -> None:
        self.channel.send(struct.pack("=i", error))

    def pass_descriptor(self, fd: int) -> int:
        """Give the program a descriptor; returns the number that it has there."""
        socket.send_fds(self.channel, [struct.pack("=i", 0)], [fd])
        return int.from_bytes(self.channel.recv(4), "little")


class Server:
    """Listens on `folder`/socket. Raises native.BuildError, ValueError for names of faults or variants."""

    def __init__(self, folder: Path, options: Options, trace: TextIO | None = None) -> None:
        self.memory = ProgramMemory()
        self.fabric = Fabric()
        kind = compose(options.faults, options.variant)
        self.devices: list[ConnectX] = [
            kind(number, self.fabric, self.memory, options) for number in range(options.devices)
        ]
        self.counts = Counts()
        self.pump = Pump(self.memory, self._gone)
        self._trace = trace
        if trace is not None:
            for device in self.devices:
                device.say = self._say
        self._connections: dict[int, Connection] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / "socket"))
        self._listener.listen(64)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)

    def run(self, ends: int) -> None:
        """Serve until the descriptor `ends` is readable."""
        _hurry()
        self._poll.register(ends, select.EPOLLIN)
        quiet_since = time.monotonic()
        while True:
            busy = self._run_pump()
            now = time.monotonic()
            if busy:
                quiet_since = now
            for fd, _ in self._poll.poll(self._nap(now - quiet_since)):
                quiet_since = now
                if fd == ends:
                    return
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._connections:
                    self._receive(self._connections[fd])

    def _nap(self, quiet: float) -> float:
        """Sleep as fits `quiet` seconds without work; returns how long the sockets may be waited for."""
        if not self.pump.watches:
            return -1
        for until, nap in _NAPS:
            if quiet < until:
                time.sleep(nap)
                return 0
        return _LONGEST_NAP

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._poll.close()
        self._listener.close()

    def _run_pump(self) -> bool:
        try:
            waiting = [device.ask_again() for device in self.devices]
            return self.pump.run() or any(waiting)
        except AccessRefusedError:
            raise
        except Exception:
            self.counts.failures.append(f"carrying out work requests:\n{traceback.format_exc()}")
            return True

    def _accept(self) -> None:
        channel, _ = self._listener.accept()
        self._connections[channel.fileno()] = Connection(channel)
        self._poll.register(channel, select.EPOLLIN)

    def _receive(self, connection: Connection) -> None:
        try:
            data = connection.channel.recv(_LONGEST_PACKET)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which recv will tell
            if connection.netlink:
                for packet in netlink.answers(data, self.devices, self._files()):
                    connection.channel.send(packet)
            elif connection.file is None:
                connection.answer(self._greet(connection, data.decode()))
            else:
                connection.answer(self._execute(connection, connection.file, data))

    def _greet(self, connection: Connection, greeting: str) -> int:
        if greeting == "lifeline":  # it says no more, and hears when this process ends
            return 0
        if greeting == "netlink":
            connection.netlink = True
            return 0
        number = int(greeting[len("uverbs") :])
        if number >= len(self.devices):
            return errno.ENXIO
        try:
            command = Path(f"/proc/{connection.pid}/comm").read_text().strip()
        except OSError:
            command = "?"
        device = self.devices[number]
        connection.file = File(device, connection.pid, command, connection.pass_descriptor)
        self.pump.add(device, connection.file.program)
        self.counts.files += 1
        self._say(connection.pid, f"opens {device.name}")
        return 0

    def _execute(self, connection: Connection, file: File, data: bytes) -> int:
        self.counts.commands += 1
        self._run_pump()  # what was posted before the command
        error = 0
        text = ""
        try:
            with self.memory.of(connection.pid):
                file.execute(data)
        except Refused as refused:
            error, text = refused.errno, str(refused)
        except MemoryFault as fault:
            error, text = errno.EFAULT, f"no memory at {fault}"
        except AccessRefusedError:
            raise
        except Exception:
            error = errno.EIO
            self.counts.failures.append(f"{file.name_of(data)}:\n{traceback.format_exc()}")
        self._say(connection.pid, f"{file.name_of(data)}: {text or 'ok'}")
        if file.program in self.pump.watches:
            self.pump.watches[file.program].refresh()
        return error

    def _gone(self, program: Program) -> None:
        """Its doorbell records are: the socket will tell more."""

    def _close(self, connection: Connection) -> None:
        fd = connection.channel.fileno()
        self._poll.unregister(fd)
        del self._connections[fd]
        connection.channel.close()
        file = connection.file
        if file is None:
            return
        self._say(connection.pid, "closes")
        self.pump.remove(file.program)
        if held := file.held():
            self.counts.left.append(Left(connection.pid, file.program.command, held))
        with self.memory.of(connection.pid):
            file.close()

    def _files(self) -> list[list[File]]:
        """The open files of each device."""
        files = [connection.file for connection in self._connections.values() if connection.file is not None]
        return [[file for file in files if file.device is device] for device in self.devices]

    def _say(self, pid: int, text: str) -> None:
        if self._trace is not None:
            print(f"{time.monotonic():.6f} {pid}: {text}", file=self._trace, flush=True)


def _hurry() -> None:
    """Let this process run as soon as it wants to, as far as the machine allows."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK, 0, 0, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
