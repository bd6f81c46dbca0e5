# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What this process did lately that can bear on what comes next: for the texts of failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from conformance.scenarios import Scenario

_events: deque[Scenario | str] = deque(maxlen=64)


def note(event: Scenario | str) -> None:
    """A scenario that is posted, or something else in words."""
    _events.append(event)


def before(scenarios: Iterable[Scenario]) -> Sequence[Scenario | str]:
    """What came before these scenarios were posted the last time, latest first."""
    posted = set(scenarios)
    past = list(reversed(_events))
    first = next((index for index, event in enumerate(past) if event in posted), 0)
    while first < len(past) and past[first] in posted:
        first += 1
    return past[first:]


def in_words(events: Iterable[Scenario | str], most: int = 4) -> str:
    """The latest of them; empty for none."""
    groups = ((str(event), len(list(group))) for event, group in groupby(events))
    return ", ".join(text if count == 1 else f"{count} times {text}" for text, count in islice(groups, most))
