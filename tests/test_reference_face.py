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


SIGNALLED = f"""
import signal, threading

def end(number, frame):
    print(signal.Signals(number).name, end=" ")
    raise KeyboardInterrupt

BEFORE
{LOAD}
from conformance.reference.engine.device import Device

AFTER

def in_a_thread(number):
    thread = threading.Thread(target=signal.raise_signal, args=(number,))
    thread.start()
    thread.join()

def signalled(self, context, alloc_pd=Device.alloc_pd):
    print("begins", end=" ")
    SEND
    pd = alloc_pd(self, context)
    print("ends", end=" ")
    return pd

Device.alloc_pd = signalled
with Context(name="ref0") as context:
    try:
        PD(context)
    except KeyboardInterrupt:
        print("reaches the program")
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGRTMAX"])
@pytest.mark.parametrize("set_by", ["BEFORE", "AFTER"])
@pytest.mark.parametrize("sent_by", ["signal.raise_signal", "in_a_thread"])
def test_the_handler_of_a_signal_waits_until_the_verb_returns(number: str, set_by: str, sent_by: str) -> None:
    """Any thread may take a signal; Python runs the handler in the main thread, so in the middle of its verb."""
    program = SIGNALLED.replace(set_by, f"signal.signal(signal.{number}, end)")
    program = program.replace("BEFORE", "").replace("AFTER", "").replace("SEND", f"{sent_by}(signal.{number})")
    ended = python(program)
    assert ended.stdout == f"begins ends {number} reaches the program\n", ended.stderr


def test_programs_see_the_handlers_that_they_set() -> None:
    program = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        + LOAD
        + "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN\n"
        "assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL\n"
        "assert signal.signal(signal.SIGINT, print) is signal.default_int_handler\n"
        "assert signal.signal(signal.SIGINT, signal.SIG_DFL) is print\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL\n"
    )
    ended = python(program)
    assert ended.returncode == 0, ended.stderr


def test_a_signal_ends_the_wait_for_an_event() -> None:
    program = LOAD + (
        "import signal\n"
        "from pyverbs.cq import CompChannel\n"
        "def end(number, frame): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, end)\n"
        "with Context(name='ref0') as context, CompChannel(context) as channel:\n"
        "    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\n"
        "        channel.get_cq_event(None)\n"
        "    except KeyboardInterrupt:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "        print('ended')\n"
    )
    ended = python(program)
    assert ended.stdout == "ended\n", ended.stderr


def test_signals_at_any_time_leave_nothing_behind() -> None:
    program = LOAD + (
        "import gc, random, signal\n"
        "from conformance.reference.libibverbs.devices import fabric\n"
        "from tests.pairs import Pair\n"
        "def end(number, frame): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, end)\n"
        "for _ in range(400):\n"
        "    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 1500e-6))\n"
        "        with Pair():\n"
        "            pass\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
        "gc.collect()\n"
        "print(fabric.devices[0].qps, fabric.devices[0].lkeys, reference.errors())\n"
    )
    ended = python(program)
    assert ended.stdout == "{} {} []\n", ended.stderr


def test_pointers_to_what_is_no_object_are_refused() -> None:
    with pytest.raises(Refused, match="no live object"):
        structs.of(c.ffi.new("struct ibv_pd *"))
