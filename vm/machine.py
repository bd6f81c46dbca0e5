# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The QEMU process: its command line, its output, its end."""

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from vm.host import VmError

# How much of the guest's console an error message shows.
CONSOLE_TAIL_LINES = 40


class GuestDied(VmError):
    """The guest ended without a status of its command: a panic, or an init that gave up."""

    exit_status = 70  # EX_SOFTWARE


class GuestHung(VmError):
    """The guest did not start its command, or its command did not end, in time."""

    exit_status = 124  # as timeout(1)


@dataclass(frozen=True)
class Machine:
    """Memory in MiB, processors, and what runs the guest's code ("kvm", or "tcg" for plain emulation)."""

    memory: int
    cpus: int
    accelerator: str


@dataclass(frozen=True)
class Limits:
    """Seconds from the start of QEMU to the start of the command, and from there to its end."""

    boot: float
    command: float


@dataclass(frozen=True)
class Channels:
    """Where the guest's streams go on this side.

    `console`: the file with the kernel's and guest-init's messages. `status`: the file in which guest-init writes
    "started" and "exit STATUS". `output`: the descriptor that gets what the command writes. `terminal`: whether
    the guest's hvc0 is this process' terminal.
    """

    console: Path
    status: Path
    output: int
    terminal: bool


def qemu_command(machine: Machine, kernel: Path, initrd: Path, reports: Path, channels: Channels) -> list[str]:
    """The command line of the guest's process. `reports` is the one folder that the guest may write."""
    # earlyprintk: a panic before the console is up shows too. A panic reboots at once, which ends QEMU (-no-reboot).
    arguments = "console=ttyS0 earlyprintk=ttyS0 loglevel=5 panic=-1 reboot=t"
    if machine.accelerator == "tcg":
        # What emulation makes expensive: a TLB flush for each system call, and reading the HPET, which all processors
        # do one at a time. The kernel takes that because it does not trust the TSC, which here is the host's.
        arguments += " mitigations=off tsc=reliable clocksource=tsc"
    terminal = ["-chardev", "stdio,id=terminal,signal=off", "-device", "virtconsole,nr=0,chardev=terminal"]
    return [
        # The guest must not outlive this process, whatever ends it.
        *("setpriv", "--pdeathsig", "KILL"),
        *("qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-accel", machine.accelerator, "-cpu", "host" if machine.accelerator == "kvm" else "max"),
        *("-m", f"{machine.memory}M", "-smp", str(machine.cpus)),
        *("-kernel", str(kernel), "-initrd", str(initrd), "-append", arguments),
        *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
        *("-virtfs", f"local,path={_escaped(reports)},mount_tag=reports,security_model=none,multidevs=remap"),
        *("-chardev", f"file,id=console,path={_escaped(channels.console)}", "-serial", "chardev:console"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"file,id=output,path=/proc/self/fd/{channels.output}"),
        *("-device", "virtserialport,nr=1,name=output,chardev=output"),
        *("-chardev", f"file,id=status,path={_escaped(channels.status)}"),
        *("-device", "virtserialport,nr=2,name=status,chardev=status"),
        *(terminal if channels.terminal else []),
    ]


def _escaped(path: Path) -> str:
    """A path as a value in a QEMU option, where a comma ends the value and two stand for one."""
    return str(path).replace(",", ",,")


def run(qemu: Callable[[Channels], list[str]], console: Path, status: Path, terminal: bool, limits: Limits) -> int:
    """Run the guest, copying its command's output to stdout as it comes; return the command's exit status.

    `qemu` gives the command line for the channels. Raises GuestDied and GuestHung, with the tail of the console. The
    guest's process has ended on return, whatever was raised.
    """
    for file in (console, status):
        file.write_bytes(b"")
    output, guest_output = os.pipe()
    channels = Channels(console, status, guest_output, terminal)
    try:
        process = subprocess.Popen(
            qemu(channels), stdin=None if terminal else subprocess.DEVNULL, pass_fds=[guest_output]
        )
    finally:
        os.close(guest_output)
    with open(output, "rb", buffering=0) as stream:
        try:
            _copy(stream, status, limits, console)
        finally:
            # Not killed at once, so that QEMU gives back the terminal in its old state.
            process.terminate()
            try:
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    ended = re.search(r"^exit (\d+)$", status.read_text(), re.MULTILINE)
    if ended is None:
        when = "while its command ran" if "started" in status.read_text() else "before its command started"
        raise GuestDied(f"the guest ended {when}{_cause(console)}\n{console_tail(console)}")
    return int(ended[1])


def _copy(stream: IO[bytes], status: Path, limits: Limits, console: Path) -> None:
    """Copy to stdout until the guest's process ends (then no one has the pipe open for writing)."""
    start = time.monotonic()
    booted: float | None = None
    while True:
        if select.select([stream], [], [], 0.1)[0]:
            data = stream.read(65536)
            if not data:
                return
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        now = time.monotonic()
        if booted is None and status.stat().st_size:
            booted = now
            print(f"vm: the command started {booted - start:.1f} s after QEMU", file=sys.stderr, flush=True)
        if booted is None and now - start > limits.boot:
            raise GuestHung(f"the guest did not start its command within {limits.boot:g} s\n{console_tail(console)}")
        if booted is not None and now - booted > limits.command:
            raise GuestHung(f"the command did not end within {limits.command:g} s\n{console_tail(console)}")


def _cause(console: Path) -> str:
    """The line in which the kernel or guest-init said why it ends; a panic's is often far above the tail."""
    cause = re.search(r"(Kernel panic|guest-init: ).*", console.read_text(errors="replace"))
    return f": {cause[0]}" if cause else ""


def console_tail(console: Path) -> str:
    """The last lines of the guest's console, to end an error message with."""
    lines = console.read_text(errors="replace").replace("\r", "").splitlines()
    tail = lines[-CONSOLE_TAIL_LINES:] or ["(nothing)"]
    return "\n".join([f"the end of its console ({console}):", *(f"    {line}" for line in tail)])
