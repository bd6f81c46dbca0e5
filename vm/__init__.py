# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A stock kernel with soft-RoCE devices in QEMU: `python -m vm --help`.

virtme-ng, the established tool for a guest on the host's own root file system, starts udev whenever the host has it,
and udev loads every driver that matches. Without KVM, on two busy cores, `uname -r` in version 1.42 took 31, 32 and
39 s; here, in turn with it, 7, 8 and 14 s. What it takes to do without it is small: an initramfs with a dozen modules,
one shell script as PID 1, one QEMU command line.
"""
