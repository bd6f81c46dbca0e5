# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs a command in a world where the RDMA devices are simulated ConnectX HCAs."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.native import BuildError
from conformance.reference.faults import FAULTS
from conformance.reference.variants import VARIANTS

from . import launch, sysfs
from .device import Options
from .memory import AccessRefusedError
from .server import Server

CANNOT = 69
"""EX_UNAVAILABLE: this machine cannot run the simulated HCA."""
BROKEN = 70
"""EX_SOFTWARE: the command succeeded, but something went wrong in the device."""


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    options = Options(
        devices=parsed.devices,
        link=parsed.link,
        cqe_version=parsed.cqe_version,
        null_mkey=not parsed.no_null_mkey,
        small_in_front=parsed.small_in_128 == "front",
        scatter_checks_keys=not parsed.scatter_unchecked,
        faults=tuple(parsed.fault),
        variant=parsed.variant,
    )
    try:
        return _run(command, options, parsed.trace, parsed.summary)
    except (BuildError, AccessRefusedError, launch.CannotError, ValueError) as error:
        print(f"connectx: {error}", file=sys.stderr)
        return CANNOT


def _run(command: list[str], options: Options, trace: Path | None, summary: bool) -> int:
    launch.check_library()
    interposer = launch.interposer()
    with _folder() as folder, contextlib.ExitStack() as stack:
        file = stack.enter_context(trace.open("w")) if trace else None
        server = Server(folder, options, file)
        stack.callback(server.close)
        sysfs.write(folder, server.devices)
        if hidden := launch.real_devices():
            print(f"connectx: hidden from the command: {', '.join(hidden)}", file=sys.stderr)
        try:
            child = subprocess.Popen(command, env=launch.environment(folder, interposer))
        except OSError as error:
            raise launch.CannotError(f"{command[0]}: {error.strerror}") from error
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1)
                signal.signal(number, lambda number, _: child.send_signal(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command gets it as well, and decides
        ended = os.pidfd_open(child.pid)
        try:
            server.run(ended)
        except BaseException:
            child.kill()
            raise
        finally:
            child.wait()
            os.close(ended)
    return _report(server, child.returncode, summary)


def _report(server: Server, status: int, summary: bool) -> int:
    counts = server.counts
    if summary:
        print(f"connectx: {counts.files} files opened, {counts.commands} commands", file=sys.stderr)
        for left in counts.left:
            print(f"connectx: {left}", file=sys.stderr)
    for failure in counts.failures:
        print(f"connectx: the simulated HCA failed: {failure}", file=sys.stderr)
    if status < 0:
        return 128 - status
    return BROKEN if counts.failures and not status else status


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=launch.PREFIX))
    launch.remove_stale(folder.parent)
    (folder / "pid").write_text(str(os.getpid()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 32:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 1 to 32")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m connectx", description=__doc__)
    parser.add_argument("--devices", type=_count, default=1, metavar="N", help="how many: mlx5_0, ... (%(default)s)")
    parser.add_argument("--link", choices=("roce", "ib"), default="roce", help="of the ports (%(default)s)")
    parser.add_argument("--cqe-version", type=int, choices=(0, 1), default=1, help="of completions (%(default)s)")
    parser.add_argument("--no-null-mkey", action="store_true", help="the HCA has no null MRs")
    parser.add_argument(
        "--small-in-128",
        choices=("front", "entry"),
        default="front",
        help="where a completion of 128 bytes has a message of 32 and less: in its first half, as longer ones, or in "
        "the second, as completions of 64 bytes; what hardware does is not public (%(default)s)",
    )
    parser.add_argument(
        "--scatter-unchecked",
        action="store_true",
        help="do not check the lkeys of a list whose data go to the completion; what hardware does is not public",
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", choices=sorted(FAULTS), help="of the engine; repeatable"
    )
    parser.add_argument("--variant", metavar="NAME", choices=sorted(VARIANTS), help="of the engine")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write each command and work request")
    parser.add_argument("--summary", action="store_true", help="at the end, say what programs did and left")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="what to run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
