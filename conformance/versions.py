# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Ranges of firmware and kernel versions.

The comparisons are those of the packaging library, which pip relies on. It knows nothing of names such as
6.12.0-1-amd64, so a version counts as the numbers that it begins with, whether `.` or `-` parts them: a range can tell
5.14.0-427.el9 from 5.14.0-503.el9, and 6.12.0-rc3 counts as 6.12.0.
"""

import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

ALLOWED = 'comparisons of numbers, such as ">=22.36, <22.41.1000" or "==6.12.*", with ==, !=, <, <=, >, >= or ~='

_NUMBERS = re.compile(r"\d+(?:[.-]\d+)*(?!\w)", re.ASCII)
_COMPARISON = re.compile(r"\s*(?:==|!=|<=|>=|<|>|~=)\s*\d+(?:[.-]\d+)*(?:\.\*)?\s*", re.ASCII)


def parse(text: str) -> SpecifierSet:
    """Comparisons with commas between them; all must hold. Raises ValueError with what is allowed."""
    try:
        if all(_COMPARISON.fullmatch(comparison) for comparison in text.split(",")):
            return SpecifierSet(text.replace("-", "."))
    except InvalidSpecifier:  # such as >=6.*
        pass
    raise ValueError(f"allowed: {ALLOWED}")


def within(version: str, text: str) -> bool:
    """Is the version in the range? One that begins with no number is in none. Raises ValueError as parse does."""
    allowed = parse(text)
    numbers = _NUMBERS.match(version)
    return numbers is not None and allowed.contains(Version(numbers[0].replace("-", ".")))
