# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the C side of the reference device promises: no exception, signal or object of Python is lost or left over."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyverbs.device import Context, get_device_list
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance import reference
from conformance.reference.engine.device import Device
from conformance.reference.engine.errors import Refused
from conformance.reference.libibverbs import c
from conformance.reference.libibverbs.structs import structs

ROOT = Path(__file__).parent.parent
LOAD = """
from conformance import reference
reference.load()
from pyverbs.device import Context
from pyverbs.pd import PD
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(ROOT)))}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)


def test_only_the_simulated_devices_are_there() -> None:
    assert [device.name.decode() for device in get_device_list()] == ["ref0", "ref1"]


def test_library_path_is_a_file() -> None:
    path = reference.library_path()
    assert path is not None
    assert Path(path).is_file()


def test_exception_inside_a_verb_is_an_errno_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Device, context: object) -> None:
        raise ZeroDivisionError("a mistake in the device")

    with Context(name="ref0") as context:
        with monkeypatch.context() as patch:
            patch.setattr(Device, "alloc_pd", broken)
            with pytest.raises(PyverbsRDMAError) as failed:
                PD(context)
        assert failed.value.error_code == 5  # EIO
        (error,) = reference.take_errors()
        assert "ibv_alloc_pd" in error
        assert "ZeroDivisionError: a mistake in the device" in error
        assert reference.errors() == []


def test_second_load_is_harmless_and_a_different_one_is_refused() -> None:
    reference.load(devices=2)
    with pytest.raises(RuntimeError, match="is loaded"):
        reference.load(devices=3)


def test_loading_after_pyverbs_is_refused() -> None:
    ended = python("import pyverbs.pd\nfrom conformance import reference\nreference.load()")
    assert ended.returncode == 1
    assert "load the reference device before pyverbs" in ended.stderr


def test_program_that_closes_nothing_ends_quietly() -> None:
    ended = python(LOAD + "context = Context(name='ref0')\npd = PD(context)\nprint('end')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def test_interrupt_inside_a_verb_reaches_the_program() -> None:
    program = LOAD + (
        "import contextlib, signal\n"
        "from pyverbs.pyverbs_error import PyverbsRDMAError\n"
        "from conformance.reference.engine.device import Device\n"
        "def interrupted(self, context):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "Device.alloc_pd = interrupted\n"
        "with Context(name='ref0') as context:\n"
        "    try:\n"
        "        with contextlib.suppress(PyverbsRDMAError):\n"
        "            PD(context)\n"
        "        for _ in range(1000): pass\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    ended = python(program)
    assert ended.stdout == "interrupted\n", ended.stderr


def test_pointers_to_what_is_no_object_are_refused() -> None:
    with pytest.raises(Refused, match="no live object"):
        structs.of(c.ffi.new("struct ibv_pd *"))
