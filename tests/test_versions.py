# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Ranges of firmware and kernel versions."""

import pytest

from conformance import versions


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("22.41.1000", ">=22.36, <=22.41.1000"),
        ("22.41.1000", "==22.41.*"),
        ("22.41.1000", "!=22.41.1002"),
        ("16.35.1012", "<16.35.2000"),
        ("229.2.52.0", ">229.2.9"),  # numbers, not letters
        ("1.70", ">=1.8"),
        ("6.12.0-1-amd64", "==6.12.*"),
        ("6.12.0-1-amd64", "~=6.12"),
        ("6.12.0-1-amd64", "==6.12.0-1"),
        ("6.12.0-1-amd64", "<6.12.0-2"),
        ("6.8.0-45-generic", ">=6.8.0-40,<6.8.0-50"),
        ("5.14.0-427.13.1.el9_4.x86_64", ">=5.14.0-427, <5.14.0-503"),
        ("6.12.0-rc3+", "==6.12.0"),
        ("5.10.0-18cloud", "==5.10.0"),
    ],
)
def test_a_version_is_in_a_range(version: str, text: str) -> None:
    assert versions.within(version, text)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("22.41.1000", "<22.41.1000"),
        ("22.41.1000", ">=22.36, <22.41"),
        ("6.12.0-1-amd64", "<6.12"),
        ("5.14.0-503.el9", "<5.14.0-503"),
        ("7.0.0", "~=6.12"),
        ("", ">=0"),  # some devices tell no firmware version
        ("unknown", "<9"),
    ],
)
def test_a_version_is_not_in_a_range(version: str, text: str) -> None:
    assert not versions.within(version, text)


@pytest.mark.parametrize(
    "text", ["", "6.12", "=6.12", ">=6.*", "===6.12", "<6.12-rc1", ">=6.1 <6.2", "<6,", "<6.x", "new"]
)
def test_what_is_no_range_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: comparisons of numbers"):
        versions.parse(text)
