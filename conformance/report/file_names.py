# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Names of files that are named after targets and scenarios."""

import hashlib
import re

LONGEST_PART = 100
"""Characters; 255 bytes is what most file systems take for the whole name."""


def part(text: str) -> str:
    """Text as part of a file name. What had to be cut or spelled otherwise has a hash, so that no two are the same."""
    plain = re.sub(r"[^\w.+-]", "_", text, flags=re.ASCII)
    if plain == text and len(text) <= LONGEST_PART:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{plain[: LONGEST_PART - len(digest) - 1]}-{digest}"


def of_target(target: str) -> str:
    """mlx5_0-1-cqe128 for mlx5_0/1/cqe128; the label, which may have a slash in it, is one part."""
    return "-".join(part(text) for text in target.split("/", 2))
