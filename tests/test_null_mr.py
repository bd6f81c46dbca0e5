# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""NullMR on stock pyverbs."""

import errno
import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyverbs.device import Context
from pyverbs.mr import MR, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.wr import SGE

from conformance.verbs.names import e
from conformance.verbs.null_mr import ClosedError, NullMR, errno_name


@pytest.fixture
def pd() -> Iterator[PD]:
    context = Context(name="ref0")
    pd = PD(context)
    yield pd
    pd.close()
    context.close()


def test_it_is_a_pyverbs_mr_of_the_longest_length(pd: PD) -> None:
    with NullMR(pd) as null_mr:
        assert isinstance(null_mr, MR)
        assert null_mr.length == 2**64 - 1
        assert null_mr.fields.same_pd
        assert null_mr.fields.same_context
        assert (null_mr.lkey, null_mr.rkey) == (null_mr.fields.lkey, null_mr.fields.rkey)


def test_sges_and_bind_infos_take_it(pd: PD) -> None:
    with NullMR(pd) as null_mr:
        assert SGE(0, 64, null_mr.lkey).lkey == null_mr.lkey
        MWBindInfo(null_mr, 0, 64, e.IBV_ACCESS_REMOTE_READ)


def test_ordinary_mrs_are_registered_as_before(pd: PD) -> None:
    with NullMR(pd), MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE) as mr:
        assert mr.length == 4096
        mr.write("data", 4)
        assert mr.read(4, 0) == b"data"


def test_rereg_is_refused(pd: PD) -> None:
    with NullMR(pd) as null_mr, pytest.raises(PyverbsRDMAError, match="rereg"):
        null_mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, pd, 0, 0, e.IBV_ACCESS_LOCAL_WRITE)


@pytest.mark.parametrize("what", ["lkey", "rkey", "length", "handle", "buf"])
def test_fields_of_a_closed_one_are_refused(pd: PD, what: str) -> None:
    null_mr = NullMR(pd)
    null_mr.close()
    with pytest.raises(ClosedError, match=what):
        getattr(null_mr, what)


def test_closing_its_pd_closes_it(pd: PD) -> None:
    null_mr = NullMR(pd)
    pd.close()
    with pytest.raises(ClosedError):
        null_mr.lkey  # noqa: B018
    assert str(null_mr) == "null MR, closed"


def test_closing_twice_does_nothing(pd: PD) -> None:
    null_mr = NullMR(pd)
    null_mr.close()
    null_mr.close()


def test_rereg_of_a_closed_one_is_refused(pd: PD) -> None:
    null_mr = NullMR(pd)
    null_mr.close()
    with pytest.raises(ClosedError):
        null_mr.rereg(0, pd)


def test_rereg_without_a_pd_is_refused(pd: PD) -> None:
    with NullMR(pd) as null_mr, pytest.raises(TypeError, match="takes a pyverbs PD, not None"):
        null_mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, None)


def test_the_garbage_collector_may_close_it(pd: PD) -> None:
    for _ in range(100):
        NullMR(pd)
    gc.collect()


@pytest.mark.parametrize("not_a_pd", [None, 3, "ref0"])
def test_what_is_no_pd_is_refused(not_a_pd: object) -> None:
    with pytest.raises(TypeError, match="pyverbs PD"):
        NullMR(not_a_pd)


def test_a_closed_pd_is_refused(pd: PD) -> None:
    pd.close()
    with pytest.raises(Exception, match="EINVAL"):
        NullMR(pd)


def run_python(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_importing_pyverbs_first_is_a_clear_error() -> None:
    done = run_python("import pyverbs.mr\nimport conformance.verbs.null_mr")
    assert done.returncode == 1
    assert "ImportedTooEarlyError: pyverbs.mr was imported" in done.stderr


def test_a_library_in_front_of_the_shim_is_a_clear_error() -> None:
    """Here the reference device, as a preloaded libibverbs would be."""
    done = run_python(
        "from conformance import reference\n"
        "reference.load()\n"
        "from conformance.verbs.null_mr import NullMR\n"
        "from pyverbs.device import Context\n"
        "from pyverbs.pd import PD\n"
        "NullMR(PD(Context(name='ref0')))"
    )
    assert done.returncode == 1
    assert "ImportedTooEarlyError" in done.stderr


def test_a_device_without_null_mrs_is_told_by_errno() -> None:
    done = run_python(
        "from conformance.verbs import shim\n"
        "from conformance import reference\n"
        "shim.load(); reference.load(variant='no-null-mr'); shim.forward_to(reference.library_path())\n"
        "from conformance.verbs.null_mr import NullMR\n"
        "from pyverbs.device import Context\n"
        "from pyverbs.pd import PD\n"
        "NullMR(PD(Context(name='ref0')))"
    )
    assert "NullMRError: ibv_alloc_null_mr returned NULL, errno 95 (EOPNOTSUPP: " in done.stderr


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "errno 0 (not set)"),
        (errno.ENOTSUP, "errno 95 (EOPNOTSUPP: Operation not supported)"),
        (errno.ENOMEM, "errno 12 (ENOMEM: Cannot allocate memory)"),
        (-errno.EINVAL, "errno -22 (negative; -EINVAL)"),
        (99999, "errno 99999 (unknown: Unknown error 99999)"),
    ],
)
def test_errno_is_shown_by_number_and_name(number: int, text: str) -> None:
    assert errno_name(number) == text
