# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""ibv_alloc_null_mr where memory runs out: what fails, for whom, and what becomes of the process."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance import native
from conformance.checks import test_allocate
from conformance.judging import Bench
from conformance.reference.engine.errors import Refused
from conformance.reference.libibverbs import c
from conformance.reference.libibverbs.structs import structs
from conformance.verbs import failing_alloc
from conformance.verbs.failing_alloc import Seen
from conformance.verbs.null_mr import NullMR, NullMRError
from conformance.verdicts import BrokenError, Failure, LackingError
from conformance.watch import watch
from tests.rig import target, wrap

check = test_allocate.test_where_memory_runs_out_it_says_so_and_holds_nothing_back

PROVIDER = r"""
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
void null_mr_before_call(void);
void null_mr_after_call(void);

static sem_t go;

static void *in_thread(void *to)
{
    sem_wait(&go);
    *(void **)to = malloc(8);
    return NULL;
}

/* Which of these calls gave nothing, as bits; in a call of the verb, or outside of one. */
static int without_memory(int in_call)
{
    void *old = malloc(8), *got[8] = {0};
    pthread_t thread;
    int failed = 0;

    sem_init(&go, 0, 0);
    if (pthread_create(&thread, NULL, in_thread, &got[7]))
        abort();
    if (in_call)
        null_mr_before_call();
    sem_post(&go);
    pthread_join(thread, NULL);
    got[0] = malloc(8);
    got[1] = calloc(1, 8);
    got[2] = realloc(old, 4096);
    got[3] = aligned_alloc(64, 64);
    got[4] = memalign(64, 64);
    if (posix_memalign(&got[5], 64, 64))
        got[5] = NULL;
    got[6] = strdup("text");
    if (in_call)
        null_mr_after_call();
    for (int at = 0; at < 8; at++)
        failed |= !got[at] << at;
    return failed;
}

/* As a kernel does it that fails an allocation, if `fails`. */
static void in_kernel(int fd, int fails)
{
    null_mr_before_call();
    if (fails && pwrite(fd, "0", 1, 0) < 0)
        abort();
    null_mr_after_call();
}
"""
PROVIDER_CDEF = "int without_memory(int); void in_kernel(int, int);"
PRELUDE = f"""
import json, os, sys, tempfile
del os.environ["LD_PRELOAD"]  # no compiler can load it
from conformance import native
from conformance.verbs import failing_alloc
module = native.extension("failing_alloc", failing_alloc._CDEF, failing_alloc._SOURCE)
failing = module.lib
provider_module = native.extension("test_provider", {PROVIDER_CDEF!r}, {PROVIDER!r})
provider = provider_module.lib
"""


def preloaded(program: str) -> Any:
    """What the program prints, as JSON, in a process with the library preloaded."""
    library = native.built("failing_alloc", failing_alloc._CDEF, failing_alloc._SOURCE)
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        cwd=failing_alloc.ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(target())
    yield bench
    bench.close()


def test_the_reference_device_makes_one_allocation_and_does_without_it_cleanly() -> None:
    seen = failing_alloc.run("ref0")
    assert (seen.library, seen.findings) == (1, ())


def test_the_nth_allocation_of_the_verb_fails_and_no_other() -> None:
    """Neither one outside of the verb nor one of another thread."""
    program = """
found = []
for nth in range(9):
    failing.failing_alloc_next(nth, -1)
    found.append(provider.without_memory(1))
    assert provider.without_memory(0) == 0
print(json.dumps(found))
"""
    assert preloaded(program) == [0, 1, 2, 4, 8, 16, 32, 64, 0]


def test_it_tells_if_an_allocation_failed_in_the_last_call() -> None:
    program = """
found = [failing.failing_alloc_works()]
for nth in (7, 1000, 0):
    failing.failing_alloc_next(nth, -1)
    provider.without_memory(1)
    found.append(failing.failing_alloc_failed())
print(json.dumps(found))
"""
    assert preloaded(program) == [1, 1, 0, 0]


def test_allocations_of_one_library_alone_can_be_made_to_fail() -> None:
    """That the C library makes for it are not its own."""
    program = """
found = []
for path in (module.__file__, provider_module.__file__):
    assert failing.failing_alloc_only_in(path.encode()) == module.ffi.NULL
    failing.failing_alloc_next(1, -1)
    found.append(provider.without_memory(1))
failing.failing_alloc_next(7, -1)
found.append(provider.without_memory(1))
assert module.ffi.string(failing.failing_alloc_only_in(b"/no/such.so")) == b"it is not loaded"
print(json.dumps(found))
"""
    assert preloaded(program) == [0, 1, 0]


def test_fail_nth_is_set_for_the_call_and_read_and_reset_after_it() -> None:
    """On a file that stands for the kernel's."""
    program = """
file = tempfile.TemporaryFile()
found = []
for fails in (1, 0):
    file.seek(0)
    file.truncate()
    failing.failing_alloc_next(3, file.fileno())
    provider.in_kernel(file.fileno(), fails)
    file.seek(0)
    found.append([failing.failing_alloc_failed(), file.read().decode()])
    assert provider.without_memory(0) == 0
print(json.dumps(found))
"""
    assert preloaded(program) == [[1, "0"], [0, "0"]]


def test_a_library_that_is_not_preloaded_is_noticed() -> None:
    library = native.extension("failing_alloc", failing_alloc._CDEF, failing_alloc._SOURCE).lib
    assert not library.failing_alloc_works()


class TwoAllocations:
    """Stands for the library with a call that makes two allocations; the device refuses while one is to fail."""

    nth = 0

    def failing_alloc_next(self, nth: int, fail_nth: int) -> None:
        self.nth = nth

    def failing_alloc_failed(self) -> bool:
        return 1 <= self.nth <= 2


@pytest.mark.parametrize(
    ("fail_nth", "error", "words"),
    [
        (None, errno.ENOMEM, None),
        (None, errno.EFAULT, "of the C library failing: NULL, errno 14 (EFAULT: Bad address), expected ENOMEM"),
        (7, errno.EFAULT, None),
        (7, 0, "of the kernel failing: NULL, errno 0 (not set), expected a positive errno"),
        (7, -errno.ENOMEM, "of the kernel failing: NULL, errno -12 (negative; -ENOMEM), expected a positive errno"),
    ],
)
def test_each_allocation_fails_in_turn_and_errno_must_say_why(
    monkeypatch: pytest.MonkeyPatch, fail_nth: "int | None", error: int, words: "str | None"
) -> None:
    library = TwoAllocations()

    def alloc(method: Any, *arguments: Any) -> Any:
        if library.failing_alloc_failed():
            raise Refused(error, "memory runs out")
        return method(*arguments)

    wrap(monkeypatch, "alloc_null_mr", alloc)
    with Context(name="ref0") as context, PD(context) as pd:
        findings: list[str] = []
        whole = failing_alloc._fields(pd)
        assert failing_alloc._let_all_fail("ref0", pd, whole, library, fail_nth, findings) == 2
    assert findings == ([f"with allocation {nth} {words}" for nth in (1, 2)] if words else [])


def test_a_call_that_does_without_the_memory_gives_a_whole_mr() -> None:
    with Context(name="ref0") as context, PD(context) as pd:
        findings: list[str] = []
        whole = failing_alloc._fields(pd)
        assert failing_alloc._let_all_fail("ref0", pd, whole, TwoAllocations(), None, findings) == 2
    assert findings == []


@pytest.mark.parametrize(
    ("program", "finding"),
    [
        ("import os; print('step 1', flush=True); print('step 2', flush=True); os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("import time; print('step 1\\nstep 2', flush=True); time.sleep(60)", "the process does not come back within"),
    ],
)
def test_a_process_that_dies_or_hangs_while_an_allocation_fails_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, program: str, finding: str
) -> None:
    monkeypatch.setattr(failing_alloc, "TIMEOUT", 3)
    instead(monkeypatch, program)
    seen = failing_alloc.run("ref0")
    assert seen.findings[0].startswith("step 2: the process ")
    assert finding in seen.findings[0]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('no device')", "did not end well:\nno device"),
        ("import os; os.kill(os.getpid(), 9)", "dies by SIGKILL"),
        ("import sys; print('step'); sys.exit('lost')", "did not end well:\nlost"),
    ],
)
def test_a_process_that_cannot_do_its_work_says_nothing_of_the_device(
    monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    instead(monkeypatch, program)
    with pytest.raises(BrokenError, match=words):
        failing_alloc.run("ref0")


def test_what_goes_wrong_without_any_failure_is_for_others_to_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, """print('{"lacking": "no MR"}')""")
    with pytest.raises(LackingError, match="also where no allocation fails: no MR"):
        failing_alloc.run("ref0")


def test_the_process_may_take_longer_than_a_call_of_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine its start alone may: the watch must not take that for a hang."""
    popen = subprocess.Popen
    left: list[float] = []

    def timed(*arguments: Any, **how: Any) -> Any:
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        return popen(*arguments, **how)

    monkeypatch.setattr(subprocess, "Popen", timed)
    with watch.over(30):
        failing_alloc.run("ref0")
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
    assert left[0] > failing_alloc.TIMEOUT
    assert left[-1] <= 30


def instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let the process run this program."""
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **how: popen([sys.executable, "-c", program], **how))


@pytest.mark.parametrize("kernel", [None, 0])
def test_a_call_without_allocations_is_no_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kernel: "int | None"
) -> None:
    monkeypatch.setattr(failing_alloc, "run", lambda _: Seen(0, kernel, ()))
    with pytest.raises(LackingError, match="makes no allocation that could fail"):
        check(bench, pytest.fail)


@pytest.mark.parametrize("seen", [Seen(1, None, ()), Seen(0, 1, ())])
def test_what_was_made_to_fail_is_told_beside_the_verdict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    monkeypatch.setattr(failing_alloc, "run", lambda _: seen)
    told: list[str] = []
    check(bench, told.append)
    assert told == [str(seen)]


def test_each_finding_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing_alloc, "run", lambda _: Seen(1, None, ("first", "second")))
    with pytest.raises(Failure, match=r"\n=> first\n=> second$"):
        check(bench, pytest.fail)


def test_the_reference_device_without_memory_gives_neither_kind_of_mr(monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(name="ref0") as context, PD(context) as pd:
        with monkeypatch.context() as patch:
            patch.setattr(structs, "allocate", lambda kind: c.ffi.cast(f"{kind} *", 0))
            with pytest.raises(NullMRError, match="ENOMEM"):
                NullMR(pd)
            with pytest.raises(PyverbsRDMAError, match=f"Errno: {errno.ENOMEM}"):
                MR(pd, 4096, 0)
        NullMR(pd).close()


def test_the_reference_device_frees_the_struct_of_a_refused_null_mr(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise Refused(errno.EBUSY, "no null MR")

    freed = []
    free = structs.free

    def freeing(struct: Any) -> None:
        freed.append(struct)
        free(struct)

    with Context(name="ref0") as context, PD(context) as pd:
        wrap(monkeypatch, "alloc_null_mr", refuse)
        monkeypatch.setattr(structs, "free", freeing)
        with pytest.raises(NullMRError, match="EBUSY"):
            NullMR(pd)
        assert len(freed) == 1
