# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The kill matrix: the conformance suite run against every fault and every variant of the reference device.

`python -m tests.kill_matrix` runs all checks against all of them, or against those named; prints what a fault or
variant shows that it must not; writes reports/kill-matrix.md, what failed how often; and brings docs/kill-matrix.md,
what the faults declare, up to date. tests/test_kill_matrix.py does the same with a selection of the checks.
"""

import argparse
import inspect
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from conformance.clauses import BY_ID, CLAUSES, Clause, Level
from conformance.reference.faults import FAULTS, Fault
from conformance.reference.variants import VARIANTS
from tests.suite import ROOT, Case, SuiteRun, run_suite

DOCUMENT = ROOT / "docs" / "kill-matrix.md"
REPORT = ROOT / "reports" / "kill-matrix.md"
OPTIONS = ("--reference", "--search-seed=1", "-p", "tests.thinning")
CHECKS: dict[str, tuple[str, ...]] = {
    # allocate
    "test_an_mr_comes_back": ("alloc-fails",),
    "test_it_is_tied_to_its_pd_and_context": (
        "mr-of-first-pd",
        "mr-of-last-pd",
        "mr-of-first-context",
        "context-unset",
    ),
    "test_length_is_the_longest": ("length-32-bits", "length-zero"),
    "test_it_covers_every_address": ("high-addresses-wrap", "address-zero-refused", "unmapped-addresses-refused"),
    "test_it_covers_every_address_in_each_list": (
        "high-addresses-wrap",
        "srq-top-in-lists-refused",
        "across-4gib-refused",
    ),
    "test_it_covers_the_longest_message": ("length-check-31",),
    "test_lkey_is_accepted_by_every_kind_of_work_request": (
        "lkey-refused-for-reads",
        "lkey-refused-by-wr-start",
        "xrc-leak-by-wr",
    ),
    "test_lkey_outlives_ordinary_mrs_and_other_pds": ("lkey-dies-with-ordinary-mr", "lkey-dies-with-other-pd"),
    "test_many_live_side_by_side_on_one_pd": ("second-alloc-fails", "second-alloc-kills-first", "table-of-32"),
    "test_they_live_side_by_side_on_several": ("second-pd-fails", "lkeys-per-context"),
    "test_threads_allocate_and_free_beside_each_other": (
        "other-threads-refused",
        "other-threads-cannot-free",
        "other-threads-free-too-much",
    ),
    "test_two_pairs_of_queue_pairs_use_one_at_the_same_time": ("one-queue-pair-at-a-time",),
    "test_an_error_on_one_queue_pair_is_not_seen_on_another": ("error-of-one-opens-memory",),
    "test_on_a_parent_domain_it_is_as_on_the_pd": (
        "parent-domain-refused",
        "parent-domain-apart",
        "parent-domain-held",
    ),
    "test_on_an_imported_pd_it_is_as_on_the_pd": (
        "imported-pd-refused",
        "imported-pd-apart",
        "imported-pd-reads-garbage",
    ),
    "test_where_there_is_none_errno_says_so_and_the_pd_stays_usable": (
        "errno-unset",
        "errno-negative",
        "errno-wrong-kind",
        "failed-alloc-breaks-pd",
        "failed-alloc-holds-pd",
    ),
    "test_where_memory_runs_out_it_says_so_and_holds_nothing_back": (
        "no-memory-errno-unset",
        "no-memory-errno-wrong",
        "no-memory-half-made",
        "no-memory-holds-pd",
        "no-memory-takes-mrs",
        "no-memory-leaks-heap",
        "no-memory-crash",
    ),
    # read
    "test_what_is_gathered_arrives_as_zeros": ("reads-garbage", "small-sends-inlined", "zeros-written-in-lines"),
    "test_each_gathered_segment_gives_its_own_bytes": (
        "third-segment-wrong",
        "null-segments-left-out",
        "mixed-written-in-lines",
    ),
    "test_the_response_of_a_read_into_it_does_not_come_back": ("keeps-read-responses",),
    "test_what_it_received_does_not_come_back": ("keeps-what-was-written", "scratch-page"),
    # discard
    "test_a_message_received_into_it_is_gone": (
        "receive-refused",
        "receive-refused-in-srq",
        "receive-end-padding",
        "srq-leak",
    ),
    "test_the_response_of_a_read_is_gone": (
        "read-response-refused",
        "long-read-response-refused",
        "read-response-end-padding",
        "read-response-leak",
    ),
    "test_the_result_of_an_atomic_is_gone_and_the_remote_word_updated": (
        "atomic-not-executed",
        "atomic-zeroes-word",
        "atomic-end-padding",
        "atomic-leak",
    ),
    "test_each_ordinary_segment_gets_its_own_bytes": ("scatter-drift", "null-behind-unwritten", "receive-end-padding"),
    "test_nothing_is_written_at_the_address_that_it_names": ("srq-leak-32", "gather-zeroes-the-address"),
    "test_the_completion_is_that_of_an_ordinary_mr": ("duplicate-completion", "wrong-opcode", "immediate-lost"),
    "test_a_message_longer_than_the_list_is_a_length_error": (
        "too-long-swallowed",
        "one-byte-too-long-swallowed",
        "too-long-reported-twice",
        "too-long-leaks",
    ),
    # traffic
    "test_zeros_arrive_in_traffic_of_each_kind": (
        "unsignaled-reads-garbage",
        "behind-in-a-chain-garbage",
        "last-of-send-queue-garbage",
        "page-end-garbage",
        "one-null-mr-a-list",
        "invalidating-reads-garbage",
        "nothing-by-window",
    ),
    "test_each_gathered_segment_arrives_in_traffic_of_each_kind": (
        "third-segment-wrong",
        "across-the-ring-garbage",
        "address-seen-before",
        "on-demand-beside-null",
    ),
    "test_what_is_received_in_traffic_is_gone": ("receive-end-padding",),
    "test_responses_in_traffic_are_gone": ("read-response-leak", "unsignaled-read-leak"),
    "test_results_of_atomics_in_traffic_are_gone": ("atomic-leak",),
    "test_ordinary_segments_in_traffic_get_their_own_bytes": (
        "inline-scatter-drift",
        "zero-length-is-two-gib",
        "address-seen-before-written",
        "two-null-mrs-merged",
        "relaxed-ordering-behind-null",
    ),
    "test_no_traffic_writes_at_the_address_that_it_names": (
        "short-message-leak",
        "inline-leak",
        "imm-srq-leak-8",
        "empty-message-zeroed",
        "odd-address-leak",
        "across-page-leak",
        "other-mr-leak",
        "one-null-mr-a-list-leak",
        "invalidating-leak",
        "implicit-mr-leak",
        "zero-based-leak",
        "read-by-window-leak",
    ),
    "test_traffic_completes_as_on_ordinary_memory": (
        "short-message-counts-null",
        "unsignaled-is-reported",
        "two-null-mrs-counted",
        "window-left-by-null",
        "invalidated-rkey-lost",
    ),
    "test_the_completion_channel_is_told_as_on_ordinary_memory": ("no-event-of-null-receive", "null-is-solicited"),
    # key
    "test_its_rkey_gives_a_peer_nothing": (
        "rkey-reads",
        "rkey-writes",
        "rkey-atomics",
        "rkey-left-over",
        "rkey-writes-by-uc",
        "rkey-reads-by-xrc",
        "rkey-atomics-by-xrc",
        "refused-immediate-received",
    ),
    "test_its_rkey_opens_no_address_at_all": ("rkey-opens-low-addresses",),
    "test_invalidating_its_rkey_does_no_harm": (
        "invalidated-by-peer",
        "invalidated-by-owner",
        "invalidates-the-neighbour",
    ),
    "test_its_rkey_is_not_that_of_a_live_mr": ("rkey-of-another-mr", "rkey-left-over", "rkey-of-the-next-mr"),
    # misuse
    "test_rereg_fails": ("rereg-access-accepted", "rereg-no-flags-accepted"),
    "test_rereg_leaves_it_as_it_was": (
        "rereg-makes-ordinary",
        "rereg-breaks",
        "rereg-moves-pd",
        "rereg-changes-length",
    ),
    "test_bind_fails": ("bind-type1-accepted", "bind-type2-accepted", "bind-of-all-accepted", "bind-of-some-accepted"),
    "test_no_peer_reaches_anything_by_the_window": (
        "refused-bind-opens",
        "refused-empty-bind-opens",
        "refused-bind-opens-its-qp",
        "refused-bind-opens-other-qps",
    ),
    "test_the_null_mr_works_after_a_refused_bind": ("refused-bind-kills-null-mr",),
    # free
    "test_dereg_returns_0": ("dereg-fails", "dereg-returns-minus-one"),
    "test_dereg_returns_0_after_use": ("dereg-busy-after-use",),
    "test_other_null_mrs_go_on_working": ("dereg-frees-next", "dereg-frees-previous", "dereg-frees-other-pds"),
    "test_ordinary_mrs_go_on_working": (
        "dereg-frees-ordinary",
        "dereg-frees-next-ordinary",
        "dereg-of-first-closes-rkey",
        "dereg-unpins-ordinary",
        "dereg-ends-remote-writes",
        "dereg-ends-remote-reads",
    ),
    "test_a_thousand_are_freed_in_any_order_while_the_rest_work": (
        "dereg-frees-other-contexts",
        "dereg-frees-oldest",
    ),
    "test_a_loop_of_alloc_and_free_holds_nothing_back": ("leaks-heap", "leaks-few-bytes", "leaks-fd", "leaks-slots"),
    "test_the_pd_can_be_deallocated_once_they_are_freed": ("holds-pd", "counts-pd-twice"),
    # bypass
    "test_it_is_not_slower_than_ordinary_memory": ("slow", "slow-receive"),
}
"""For each check, the faults that it fails. A clause can have several checks: none may be there for nothing."""
SEARCHES: dict[str, tuple[str, ...]] = {
    "test_no_gather_list_can_be_found_that_arrives_wrong": ("third-segment-wrong", "mixed-written-in-lines"),
    "test_no_scatter_list_can_be_found_that_is_filled_wrong": ("scatter-drift", "receive-end-padding"),
    "test_no_work_request_can_be_found_that_writes_there": ("leaks-to-address",),
    "test_no_work_request_can_be_found_that_completes_otherwise": ("byte-len-without-null",),
}
"""The same for the checks that search at random, which need more examples than a run of all checks can afford."""
SEQUENCES: dict[str, tuple[str, ...]] = {
    "test_no_sequence_can_be_found_after_which_its_lkey_is_refused": ("lkey-refused-after-reset",),
    "test_no_sequence_can_be_found_in_which_queue_pairs_disturb_each_other": ("reset-spoils-others",),
    "test_no_sequence_can_be_found_after_which_there_is_no_more": ("alloc-fails-beside-an-error",),
    "test_no_sequence_can_be_found_after_which_it_reads_as_something_else": ("reads-garbage-after-reset",),
    "test_no_sequence_can_be_found_after_which_memory_is_written": ("leaks-once-memory-is-registered",),
    "test_no_sequence_can_be_found_after_which_a_list_is_filled_wrong": ("scatter-stops-after-reset",),
    "test_no_sequence_can_be_found_after_which_it_completes_otherwise": ("no-byte-len-after-reset",),
    "test_no_sequence_can_be_found_after_which_rereg_succeeds": ("rereg-accepted-after-use",),
    "test_no_sequence_can_be_found_in_which_rereg_does_harm": ("rereg-twice-breaks",),
    "test_no_sequence_can_be_found_after_which_a_bind_succeeds": ("bind-accepted-the-second-time",),
    "test_no_sequence_can_be_found_in_which_a_bind_does_harm": ("bind-spoils-waiting-receives",),
    "test_no_sequence_can_be_found_after_which_it_cannot_be_freed": ("dereg-busy-after-flush",),
    "test_no_sequence_can_be_found_in_which_freeing_one_harms_another": (
        "dereg-spoils-waiting-receives",
        "second-use-of-an-lkey-leaks",
    ),
    "test_no_sequence_can_be_found_after_which_the_pd_is_held": ("holds-pd-after-an-error",),
}
"""The same for the checks that try sequences of steps, whose faults no other check sees."""
STRESS: dict[str, tuple[str, ...]] = {
    "test_many_queue_pairs_use_many_under_stress": (
        "reads-garbage-under-load",
        "alloc-fails-under-load",
        "dereg-busy-under-load",
        "deep-receive-leak",
        "deep-reads-garbage",
        "completion-lost-in-a-deep-queue",
        "freed-beside-waiting-receives",
    ),
}
"""The same for the check that needs --stress, whose faults no other check sees."""
NEED_A_HISTORY = frozenset(name for faults in SEQUENCES.values() for name in faults)
NEED_STRESS = frozenset(name for faults in STRESS.values() for name in faults)
ENOUGH_SEQUENCES = 1500
"""With --search-seed=1, to find each of these, whatever Hypothesis there is."""
ONLY_A_KERNEL = "test_a_process_that_dies_with_them_leaves_nothing"
"""The check that no fault can fail: the reference device has no kernel that could keep a dead process's MRs."""
FATAL_SCENARIOS = (
    "rc-write-n64-remote-rq-post_send-poll_cq",
    "rc-read-remote-n64-rq-post_send-poll_cq",
    "rc-send_imm-m31-n31@zero-srq-post_send-poll_cq",
)
"""For faults that end the process: each time costs a new worker, and a hang the timeout."""
SLOW = "bypass/no-slower"
JUDGED = tuple(clause.id for clause in CLAUSES if clause.level is not Level.OBSERVE)


@dataclass(frozen=True)
class Selection:
    """Which checks to run: every `thin`-th scenario, how many examples each random search tries, and how many sequences
    (0: none).
    """

    thin: int
    search: int
    sequences: int


WHOLE = Selection(thin=1, search=40, sequences=60)
QUICK = Selection(thin=12, search=0, sequences=0)
PROCESSES = 2
LINE_LENGTH = 120
"""Columns, as pyproject.toml has it."""


def on_fault(name: str) -> tuple[str, ...]:
    """Options for a run on the device with this fault."""
    kind = "faults" if FAULTS[name].has_null_mrs else "absent"
    return f"--providers=tests/kill_matrix_{kind}.yaml", f"--reference-fault={name}"


def on_variant(name: str) -> tuple[str, ...]:
    return "--providers=tests/kill_matrix_variants.yaml", f"--reference-variant={name}"


def run_fault(name: str, selection: Selection) -> SuiteRun:
    """The suite on the device with this fault. Of the scenarios for the clause that it breaks, and of those of checks
    that must notice it, none is left out."""
    fault = FAULTS[name]
    options = ["--enough=2", *on_fault(name)]
    options.append(f"--deselect=conformance/checks/test_free.py::{ONLY_A_KERNEL}")
    if fault.ends_process:
        options += ["-n1", *(f"--scenario={scenario}" for scenario in FATAL_SCENARIOS)]
    else:
        noticing = (check for check, faults in CHECKS.items() if name in faults)
        if name in NEED_A_HISTORY:
            selection = replace(selection, sequences=ENOUGH_SEQUENCES)
        options += [*(f"--whole={which}" for which in (fault.clause, *noticing)), *_selected(selection)]
    if name in NEED_STRESS:
        options.append("--stress=1")
    if fault.clause == SLOW:  # it is a SHOULD clause, which fails in no other run
        options.append("--conformance-strict")
    return run_suite(*OPTIONS, *options)


def run_variant(name: str, selection: Selection) -> SuiteRun:
    return run_suite(*OPTIONS, *on_variant(name), *_selected(selection))


def run_unsound(name: str, *more: str) -> SuiteRun:
    """A few scenarios of each check on one of the devices of tests/unsound.py."""
    options = (
        "--providers=tests/kill_matrix_faults.yaml",
        f"--reference-fault=tests.unsound:{name}",
        *_selected(Selection(thin=64, search=0, sequences=0)),
    )
    return run_suite(*OPTIONS, *options, *more)


def _selected(selection: Selection) -> tuple[str, ...]:
    return f"--thin={selection.thin}", f"--search={selection.search}", f"--sequences={selection.sequences}"


def fault_problems(name: str, run: SuiteRun) -> Iterator[str]:
    """What the run of a fault shows that it must not."""
    fault = FAULTS[name]
    if fault.clause not in run.clauses("FAIL"):
        yield f"{name} survives: no check of {fault.clause} fails\n{run.output}"
    wanted = {check for check, faults in (CHECKS | SEQUENCES | STRESS).items() if name in faults}
    for check in sorted(wanted - failing_checks(run)):
        yield f"{name} is not noticed by {check}"
    if name in NEED_A_HISTORY and (others := sorted(failing_checks(run) - SEQUENCES.keys())):
        yield f"{name} is seen without any history, by {', '.join(others)}"
    if name in NEED_STRESS and (others := sorted(failing_checks(run) - STRESS.keys())):
        yield f"{name} is seen without any stress, by {', '.join(others)}"
    declared = {fault.clause, *fault.touches}
    if undeclared := [case for case in run.cases if case.verdict == "FAIL" and case.clause not in declared]:
        yield (
            f"{name} touches more than it declares. If such a device cannot keep these clauses either, its class says:"
            f"\n\n{_to_paste(fault, {case.clause for case in undeclared})}\n\n{_first_of_each(undeclared)}"
        )
    if not fault.breaks_ordinary and (broken := [case for case in run.cases if case.verdict == "BROKEN"]):
        yield (
            f"{name} is taken for a broken rig. If such a device gets ordinary memory wrong, too, its class says:"
            f"\n\n{_place_of(fault)}\n    breaks_ordinary = True\n\n{_first_of_each(broken)}"
        )


def _to_paste(fault: type[Fault], more: set[str]) -> str:
    """The whole declaration of what the fault touches, in the order of the clauses and as `ruff format` leaves it."""
    touches = [clause for clause in JUDGED if clause in {*fault.touches, *more}]
    line = f"    touches = ({', '.join(map(_quoted, touches))}{',' if len(touches) == 1 else ''})"
    if len(line) > LINE_LENGTH:
        line = "\n".join(["    touches = (", *(f"        {_quoted(clause)}," for clause in touches), "    )"])
    return f"{_place_of(fault)}\n{line}"


def _place_of(fault: type[Fault]) -> str:
    return f"# {fault.__module__.replace('.', '/')}.py, class {fault.__name__}"


def _quoted(clause: str) -> str:
    return f'"{clause}"'


def _first_of_each(cases: Iterable[Case]) -> str:
    """Of each clause how many cases there are, and what the first says."""
    by_clause: dict[str, list[Case]] = {}
    for case in cases:
        by_clause.setdefault(case.clause, []).append(case)
    return "\n\n".join(
        f"{clause}: {len(cases)} {cases[0].verdict}, the first of them {cases[0].name}\n{cases[0].text}"
        for clause, cases in by_clause.items()
    )


def variant_problems(name: str, run: SuiteRun) -> Iterator[str]:
    for case in run.cases:
        if case.verdict in ("FAIL", "BROKEN"):
            yield f"{name} conforms, but {case.name} is {case.verdict}\n{case.text}"
    if run.status:
        yield f"{name} conforms, but the run ends with {run.status}\n{run.output}"


def failing_checks(run: SuiteRun) -> set[str]:
    """The check functions that fail."""
    return {case.name.partition("[")[0] for case in run.cases if case.verdict == "FAIL"}


def document() -> str:
    """docs/kill-matrix.md, from what the faults and variants say of themselves.

    No line depends on more than one fault, check or variant, so that changes of different ones do not meet in a merge.
    """
    proofs = CHECKS | SEARCHES | SEQUENCES | STRESS
    return (
        "# Kill matrix\n\n"
        "The suite is run against wrong devices (`conformance/reference/faults`) and against other conforming ones "
        "(`conformance/reference/variants.py`). This page is what they declare; `tests/test_kill_matrix.py` holds the "
        "suite to it, and `python -m tests.kill_matrix --page` writes it.\n\n"
        "## Wrong devices, by the clause that they break\n\n"
        "A check of that clause fails. A device that is wrong in this way may not be able to keep another clause "
        "either: it *touches* that, whose checks may fail too. No other check fails.\n\n"
        + "".join(_section(BY_ID[clause]) for clause in JUDGED)
        + "## What each check is proven by\n\n"
        + "".join(f"- `{check}`: {', '.join(faults)}\n" for check, faults in proofs.items())
        + f"- `{ONLY_A_KERNEL}`: only a kernel that keeps the MRs of a dead process\n"
        + "\n## Conforming variants\n\n"
        + "".join(f"- `{name}`: {_words(variant)}\n" for name, variant in VARIANTS.items())
    )


def _section(clause: Clause) -> str:
    faults = {name: fault for name, fault in FAULTS.items() if fault.clause == clause.id}
    lines = "".join(
        f"- `{name}`: {_words(fault)}{f' *Touches {_list(fault.touches)}.*' if fault.touches else ''}\n"
        for name, fault in faults.items()
    )
    return f"### {clause.id}\n\n{clause.level.value}: {clause.requirement}.\n\n{lines}\n"


def _list(clauses: Collection[str]) -> str:
    return ", ".join(clause for clause in JUDGED if clause in clauses)


def _words(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def report(runs: Mapping[str, SuiteRun]) -> str:
    """reports/kill-matrix.md: how many checks of each clause failed for each fault."""
    lines = []
    for name, run in runs.items():
        failed = Counter(case.clause for case in run.cases if case.verdict == "FAIL")
        counts = ", ".join(f"{clause} {failed[clause]}" for clause in JUDGED if failed[clause])
        lines.append(f"- `{name}` ({FAULTS[name].clause}): {counts}\n")
    return f"# Kill matrix, measured\n\nHow many checks of each clause failed (most stop at 2).\n\n{''.join(lines)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill_matrix", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults and variants (default: all)")
    parser.add_argument("--quick", action="store_true", help="the selection of checks that the tests use")
    parser.add_argument("--page", action="store_true", help="run nothing, only write docs/kill-matrix.md")
    option = parser.parse_args()
    if unknown := set(option.names) - FAULTS.keys() - VARIANTS.keys():
        parser.error(f"no fault or variant {', '.join(sorted(unknown))}")
    DOCUMENT.write_text(document())
    if option.page:
        return 0
    selection = QUICK if option.quick else WHOLE
    faults = [name for name in FAULTS if name in option.names or not option.names]
    variants = [name for name in VARIANTS if name in option.names or not option.names]
    with ThreadPoolExecutor(PROCESSES) as pool:
        of_faults = dict(zip(faults, pool.map(lambda name: run_fault(name, selection), faults)))
        of_variants = dict(zip(variants, pool.map(lambda name: run_variant(name, selection), variants)))
    problems = [problem for name, run in of_faults.items() for problem in fault_problems(name, run)]
    problems += [problem for name, run in of_variants.items() for problem in variant_problems(name, run)]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report(of_faults))
    print(*problems, f"{len(faults)} faults, {len(variants)} variants, {len(problems)} problems", sep="\n\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
