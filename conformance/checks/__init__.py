# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The checks, one file for each group of clauses."""
