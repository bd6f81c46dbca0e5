# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the manual page leaves open: recorded, never judged."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.checks import tables
from conformance.judging import Bench
from conformance.outcome import Run
from conformance.scenarios import Operation, Scenario, Side, mem, null, other_null
from conformance.verbs import forked
from conformance.verbs.closing import close, never_collect
from conformance.verbs.null_mr import NullMR

Observe = Callable[[str], None]

WRITE = tables.rc(Operation.RDMA_WRITE, [mem(64)], ())
READ = tables.rc(Operation.RDMA_READ, (), [mem(64)])


class ClingingNullMR(NullMR):
    """A null MR that stays when pyverbs closes the PD's children before the PD."""

    __slots__ = ("let_go",)

    def close(self) -> None:
        if getattr(self, "let_go", False):
            super().close()


def ending(run: Run) -> str:
    """How a scenario ended, in a word or two."""
    if run.outcome.refusal:
        return f"refused by {run.outcome.refusal.verb}: {run.outcome.refusal.error}"
    ends = [wc.status for completions in run.outcome.completions.values() for wc in completions]
    return " and ".join(dict.fromkeys(ends)) or "no completion"


@pytest.mark.clause("observe/fields")
def test_fields_of_the_mr(bench: Bench, observe: Observe) -> None:
    observe(str(bench.null_mr.fields))


@pytest.mark.clause("observe/lkey-as-rkey")
@pytest.mark.parametrize("scenario", [WRITE, READ], ids=["write", "read"])
def test_lkey_used_as_a_remote_key(bench: Bench, scenario: Scenario, observe: Observe) -> None:
    bench.control(scenario)
    run = bench.run(scenario, rkey=bench.null_mr.lkey)
    observe(f"{scenario.operation.name} with the lkey as rkey: {ending(run)}")


OF_ANOTHER_PD = {
    "SEND from it": tables.reading(Operation.SEND, [null(64)]),
    "receive into it": tables.rc(Operation.SEND, [mem(64)], [null(64)]),
    "SEND from it beside one of that PD": tables.reading(Operation.SEND, [other_null(32), null(32)]),
}


@pytest.mark.clause("observe/other-pd")
def test_lkey_on_a_queue_pair_of_another_pd(bench: Bench, observe: Observe) -> None:
    sibling = bench.sibling()
    try:
        runs = {words: sibling.run(scenario, lkey=bench.null_mr.lkey) for words, scenario in OF_ANOTHER_PD.items()}
        observe(f"on a QP of another PD: {'; '.join(f'{words}: {ending(run)}' for words, run in runs.items())}")
    finally:
        sibling.close()


@pytest.mark.clause("observe/inline")
def test_lkey_of_inline_data(bench: Bench, observe: Observe) -> None:
    """At live memory: a provider that copies the data reads it, whatever the lkey is."""
    scenario = replace(tables.rc(Operation.SEND, [mem(32)], [mem(32)]), inline=True)
    bench.control(scenario)
    bench.face(otherwise=Side.REQUESTER)
    run = bench.run(scenario, gather_lkey=bench.null_mr.lkey)
    arrived = run.outcome.memory[Side.RESPONDER]
    place = run.layout.scatter[0].region
    assert place is not None
    if not run.findings:
        words = "what is at the address"
    elif not any(arrived[place.offset : place.end]):
        words = "zeros"
    else:
        words = run.findings[0].text
    observe(f"inline SEND with its lkey: {ending(run)}, sends {words}")


@pytest.mark.clause("observe/fork")
def test_what_a_child_of_fork_does_to_it(bench: Bench, observe: Observe) -> None:
    observe(forked.run(replace(bench.target, peer=None)))


@pytest.mark.clause("observe/use-after-free")
def test_lkey_after_dereg(bench: Bench, observe: Observe) -> None:
    null_mr = NullMR(bench.pd)
    lkey = null_mr.lkey
    close(null_mr)
    run = bench.run(tables.reading(Operation.SEND, [null(64)]), lkey=lkey)
    observe(f"SEND from it after ibv_dereg_mr: {ending(run)}")


@pytest.mark.clause("observe/pd-with-live-mr")
def test_dealloc_pd_with_a_live_null_mr(bench: Bench, observe: Observe) -> None:
    sibling = bench.sibling()
    null_mr = ClingingNullMR(sibling.pd)
    sibling.close_traffic()
    error = sibling.dealloc_pd()
    observe(f"ibv_dealloc_pd while a null MR lives: {error or 'succeeds'}")
    if error is None:  # what dereg does with an MR whose PD is gone is not for this process to find out
        never_collect(null_mr)
        return
    null_mr.let_go = True
    close(null_mr)
    sibling.close()
