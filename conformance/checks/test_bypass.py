# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A device should bypass PCI transfers for null MRs, which makes them faster; at the least they are not slower."""

from collections.abc import Callable
from statistics import median

import pytest

from conformance.checks import tables
from conformance.judging import Bench
from conformance.outcome import Aspect
from conformance.scenarios import Operation, Scenario, mem, null
from conformance.verdicts import Failure, LackingError

LENGTH, ROUNDS, REPEAT = 65536, 15, 8
SLOWER = 1.25
"""A ratio up to this is the noise of a short measurement."""

PATHS = {
    "gather": tables.reading(Operation.RDMA_WRITE, [null(LENGTH)]),
    "receive": tables.rc(Operation.SEND, [mem(LENGTH)], [null(LENGTH)]),
    "read-response": tables.rc(Operation.RDMA_READ, (), [null(LENGTH)]),
}


@pytest.mark.clause("bypass/no-slower")
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_it_is_not_slower_than_ordinary_memory(
    bench: Bench, path: Scenario, observe: Callable[[str], None], not_met: Callable[[Failure], None]
) -> None:
    """Rounds on null and on ordinary memory alternate, so that both see the same machine."""
    ordinary = path.on_ordinary_memory()
    try:
        bench.check(path, *Aspect)
    except Failure:
        raise LackingError(f"{path} fails, which other clauses judge: it cannot be timed") from None
    rounds = [(bench.seconds(path, REPEAT), bench.seconds(ordinary, REPEAT)) for _ in range(ROUNDS)]
    ratio = median(null_seconds / memory_seconds for null_seconds, memory_seconds in rounds)
    text = f"{path.operation.name} of {LENGTH} bytes takes {ratio:.2f} times as long as on ordinary memory"
    observe(text)
    if ratio > SLOWER:
        not_met(Failure(f"{bench.where}\n=> {text}\nscenario: {path}", path, shown_by_scenario=False))
