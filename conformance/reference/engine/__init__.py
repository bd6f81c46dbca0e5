# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The simulated device itself, in plain Python: keys and memory, queues, queue pairs, transfers, completions.

An executable reading of the verbs semantics (InfiniBand Architecture Specification volume 1, "IBTA" below, and the
manual pages of libibverbs). It knows no C struct: a face shows it to programs.
"""
