# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The initramfs of the guest: busybox, the modules, guest-init, and the command to run."""

import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """A command for the guest.

    It runs in `cwd` with exactly `environment`. What it writes is lost with the guest, except in the folder `reports`.
    `interactive`: its streams are this process' terminal, through the guest's hvc0.
    """

    command: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]
    reports: Path
    interactive: bool = False


def initramfs(busybox: bytes, init: bytes, modules: Mapping[str, bytes], job: Job, has_siw: bool) -> bytes:
    """The cpio archive that the kernel unpacks as its first root; `modules` are in the order of loading; `has_siw`: a
    device of siw is made, too."""
    return cpio(
        {
            "bin": (stat.S_IFDIR | 0o755, b""),
            "dev": (stat.S_IFDIR | 0o755, b""),
            "modules": (stat.S_IFDIR | 0o755, b""),
            # The kernel opens it for PID 1's messages before that can mount anything.
            "dev/console": (stat.S_IFCHR | 0o600, b""),
            "bin/busybox": (stat.S_IFREG | 0o755, busybox),
            "init": (stat.S_IFREG | 0o755, init),
            "settings": (stat.S_IFREG | 0o644, settings(job, has_siw).encode()),
            "command": (stat.S_IFREG | 0o600, command_script(job).encode()),
            "modules/order": (stat.S_IFREG | 0o644, "".join(f"{name}\n" for name in modules).encode()),
            **{f"modules/{name}": (stat.S_IFREG | 0o644, content) for name, content in modules.items()},
        }
    )


def settings(job: Job, has_siw: bool) -> str:
    """Variables for guest-init, in shell syntax."""
    flags = f"INTERACTIVE={'yes' if job.interactive else ''}\nSIW={'yes' if has_siw else ''}\n"
    return f"REPORTS={shlex.quote(str(job.reports))}\n{flags}"


def command_script(job: Job) -> str:
    """The shell script that runs the command.

    Through env(1), because not every name in an environment can be set by a shell.
    """
    environment = [f"{name}={value}" for name, value in job.environment.items()]
    return f"cd {shlex.quote(str(job.cwd))} && exec {shlex.join(['env', '-i', *environment, *job.command])}\n"


def cpio(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """A "newc" cpio archive of name -> (mode with type, content), owned by root.

    Format: Documentation/driver-api/early-userspace/buffer-format.rst. The only device is /dev/console, character 5:1.
    """
    archive = bytearray()
    for inode, (name, (mode, content)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], 1):
        device = (5, 1) if stat.S_ISCHR(mode) else (0, 0)
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        archive += bytes(-len(archive) % 4) + content
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
