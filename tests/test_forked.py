# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What is seen of null MRs in a process that forks."""

from dataclasses import replace

from conformance.verbs import forked
from tests.rig import target
from tests.suite import run_suite


def test_children_that_do_nothing_and_that_free_it_are_told_of() -> None:
    assert forked.run(target()) == (
        "a child of fork() does nothing: in the parent, it works on; "
        "a child of fork() frees it: in the parent, it works on"
    )


def test_it_is_tried_on_the_variant_that_is_used() -> None:
    run = run_suite("--reference", "--reference-variant=infiniband-several-pkeys", "-k", "child_of_fork")
    assert run.counts() == {"PASS": 1}
    assert "frees it: in the parent, it works on" in run.output


def test_a_process_that_cannot_open_the_device_is_told_of_with_its_last_words() -> None:
    wrong = target()
    seen = forked.run(replace(wrong, device=replace(wrong.device, name="ref9")))
    assert seen.startswith("the process ends with status 1: ")
    assert "ref9" in seen
