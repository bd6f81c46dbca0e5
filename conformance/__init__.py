# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Conformance suite for null memory regions, ibv_alloc_null_mr(3)."""

__version__ = "0.1.0"
