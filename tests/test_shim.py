# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The shim and a libibverbs that is not the system's, as an rdma-core built from source has it."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LIBIBVERBS = """
#include <stddef.h>
#include <stdint.h>
void *ibv_reg_mr(void *pd, void *addr, size_t length, int access) { return (void *)(length + 1); }
void *ibv_reg_mr_iova2(void *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
    return (void *)(length + 2);
}
"""
# Stands for a module of pyverbs.
MODULE = """
#include <stddef.h>
#include <stdint.h>
void *ibv_reg_mr(void *pd, void *addr, size_t length, int access);
void *ibv_reg_mr_iova2(void *pd, void *addr, size_t length, uint64_t iova, unsigned access);
size_t plain(size_t length) { return (size_t)ibv_reg_mr(NULL, NULL, length, 0); }
size_t iova2(size_t length) { return (size_t)ibv_reg_mr_iova2(NULL, NULL, length, 0, 0); }
"""
PROGRAM = """
import ctypes, sys
from pathlib import Path
from conformance.verbs import shim
shim.load()
def mapped():
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libibverbs" in line}
print(*mapped(), "before")
module = ctypes.CDLL(sys.argv[1])
print(getattr(module, sys.argv[2])(40))
print(*mapped(), "after")
"""


def compiled(folder: Path, name: str, source: str, *flags: str) -> Path:
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    target = folder / name
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(target), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return target


@pytest.mark.parametrize(("verb", "result"), [("plain", 41), ("iova2", 42)])
def test_ordinary_registrations_go_to_the_library_that_the_modules_of_pyverbs_name(
    verb: str, result: int, tmp_path: Path
) -> None:
    library = compiled(tmp_path, "libibverbs.so.1", LIBIBVERBS, "-Wl,-soname,libibverbs.so.1")
    linked = ("-Wl,--no-as-needed", "-x", "none", str(library), f"-Wl,--enable-new-dtags,-rpath,{tmp_path}")
    module = compiled(tmp_path, "module.so", MODULE, *linked)
    command = [sys.executable, "-c", PROGRAM, str(module), verb]
    # LD_LIBRARY_PATH comes before what a module names.
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["before", str(result), f"{library} after"], done.stderr
