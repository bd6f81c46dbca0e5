# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs programs on a simulated ConnectX HCA, by the installed, unmodified libmlx5: `python -m connectx -- COMMAND...`

The device is a process of its own, the parent of COMMAND, on the engine of the suite's reference device. What the
engine lacks for that is here: the kernel's uverbs commands, and work and completion queues in the format of
<infiniband/mlx5dv.h>, in the memory of the program.
"""
