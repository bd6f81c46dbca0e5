# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Run the suite, a command or a shell in a guest with soft-RoCE devices.

The guest is a stock kernel on this machine's own root file system, read-only beneath an overlay in memory. It has the
devices rxe0 and rxe1 and sees this checkout and this Python; what it writes is lost, but for the reports folder.

Exit status: that of the command in the guest (pytest: 0 to 5). 2: wrong options, 69: something is missing on this
machine, 70: the guest died, 124: the guest or its command took too long.
"""

import argparse
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from vm import guest, host, kernel, machine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = ROOT / ".build/vm"
PROVIDERS = re.compile("MLX|IBV_|RDMAV_")
"""Names of variables that providers and libibverbs read begin so."""


def main(arguments: list[str]) -> int:
    """Run what the command line asks for and return the exit status."""
    options = parse(arguments)
    try:
        return boot(options)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except host.VmError as error:
        print(f"vm: {error}", file=sys.stderr)
        return error.exit_status


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; `rest` has what follows `--`."""
    parser = argparse.ArgumentParser(
        prog="python -m vm",
        description=__doc__,
        usage="%(prog)s [options] [-- pytest arguments]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kernel",
        type=Path,
        metavar="PATH",
        help="a bzImage or vmlinux (default: Debian's linux-image-amd64, fetched by apt)",
    )
    parser.add_argument(
        "--modules",
        type=Path,
        metavar="DIR",
        help="the folder of its modules (default: where its package or build tree has them)",
    )
    parser.add_argument(
        "--memory", type=int, default=2048, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument(
        "--cpus",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="its processors (default: %(default)s; more than its two devices keep busy gain nothing)",
    )
    parser.add_argument(
        "--accel",
        choices=["kvm", "tcg"],
        help="how QEMU runs the guest (default: kvm where it works, else tcg, plain emulation)",
    )
    parser.add_argument(
        "--reports",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="the folder that the guest may write (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=900,
        metavar="S",
        help="seconds that the command may take (default: %(default)s)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable that providers read (MLX*, IBV_*, RDMAV_*), for the guest: as it is set here, or with this "
        "value; repeatable. Of those, the guest has no other",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--shell", action="store_true", help="an interactive shell instead of the suite")
    what.add_argument(
        "--exec",
        action="store_true",
        help="what follows -- is a command to run instead of the suite",
    )
    if "--" in arguments:
        separator = arguments.index("--")
        arguments, rest = arguments[:separator], arguments[separator + 1 :]
    else:
        rest = []
    options = parser.parse_args(arguments)
    for name in ("memory", "cpus", "timeout"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} must be more than 0")
    for setting in options.env:
        name, is_set, _ = setting.partition("=")
        if not name or not (is_set or name in os.environ):
            parser.error(f"--env {setting}: not set here (tox passes on MLX*, IBV_* and RDMAV_* alone); say NAME=VALUE")
    if options.modules and not options.kernel:
        parser.error("--modules needs --kernel")
    if options.exec and not rest:
        parser.error("--exec: no command follows --")
    if options.shell and rest:
        parser.error("--shell takes no arguments after --")
    if options.shell and not (sys.stdin.isatty() and sys.stdout.isatty()):
        parser.error("--shell needs a terminal")
    return argparse.Namespace(**vars(options), rest=rest)


def boot(options: argparse.Namespace) -> int:
    """Start the guest that the options ask for; returns its command's exit status."""
    # By an exception, so that the guest is ended and the temporary files go.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    busybox = host.find_tools()[host.STATIC_BUSYBOX]
    if not options.exec and not options.shell:
        compile_here()
    chosen = kernel.find_kernel(options.kernel, options.modules) if options.kernel else kernel.debian_kernel(CACHE)
    accelerator = options.accel or ("kvm" if host.kvm_works() else "tcg")
    hardware = machine.Machine(options.memory, options.cpus, accelerator)
    reports = options.reports.resolve()
    reports.mkdir(parents=True, exist_ok=True)
    variables = environment(options.env)
    mention_held_back(variables)
    job = guest.Job(command(options), Path.cwd(), variables, reports, interactive=options.shell)
    limits = machine.Limits(boot=120, command=math.inf if options.shell else options.timeout)
    print(
        f"vm: Linux {chosen.release}, {hardware.cpus} CPUs, {hardware.memory} MiB, "
        + ("KVM" if accelerator == "kvm" else "plain emulation (no KVM)"),
        file=sys.stderr,
        flush=True,
    )
    init = (HERE / "guest-init").read_bytes()
    # Only for this user's eyes: the initramfs has the whole environment in it.
    with tempfile.TemporaryDirectory(prefix="vm-") as folder:
        initrd = Path(folder) / "initrd"
        modules, has_siw = kernel.guest_modules(chosen), kernel.has_module(chosen, "siw")
        initrd.write_bytes(guest.initramfs(busybox.read_bytes(), init, modules, job, has_siw))
        image = kernel.bootable_image(chosen, CACHE)
        return machine.run(
            lambda channels: machine.qemu_command(hardware, image, initrd, reports, channels),
            console=reports / "vm-console.log",
            status=Path(folder) / "status",
            terminal=options.shell,
            limits=limits,
        )


def compile_here() -> None:
    """Let the suite start here first: what it compiles in the guest takes long there, and is lost."""
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider"]
    command += ["--reference"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise host.VmError(f"the suite cannot be started:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def command(options: argparse.Namespace) -> list[str]:
    """What runs in the guest: by default the suite, as on a machine of its own, but on the guest's devices.

    Of pytest's options the last one counts, so that all of these can be overridden.
    """
    if options.shell:
        columns, lines = shutil.get_terminal_size()
        return ["sh", "-c", f"stty columns {columns} rows {lines}; exec ${{SHELL:-/bin/sh}}"]
    if options.exec:
        return list(options.rest)
    suite = ["-p", "xdist", "-n", "auto", "-W", "default", f"--providers={HERE / 'providers.yaml'}"]
    reports = f"--reports={options.reports.resolve()}"
    return [sys.executable, "-m", "pytest", *suite, reports, *options.rest]


def environment(named: Sequence[str] = ()) -> dict[str, str]:
    """This process' own, so that everything is found as it is here, with the colours of this terminal.

    What providers read was set for this machine's devices, and is left out but for what is `named`: NAME or NAME=VALUE.
    """
    variables = {name: value for name, value in os.environ.items() if not PROVIDERS.match(name)}
    for setting in named:
        name, is_set, value = setting.partition("=")
        variables[name] = value if is_set else os.environ[name]
    # Emulated, compiling is slow, and each worker would do it again; what is written disappears with the guest.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    # Looking for plugins is to read the metadata of every package, file by file.
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    variables.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    if sys.stdout.isatty():
        variables.setdefault("PY_COLORS", "1")
    return variables


def mention_held_back(variables: Mapping[str, str]) -> None:
    """Say what this process has for providers, and the guest with these variables has not."""
    if held_back := sorted(name for name in os.environ if PROVIDERS.match(name) and name not in variables):
        print(f"vm: not passed to the guest: {', '.join(held_back)} (--env NAME passes one on)", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
