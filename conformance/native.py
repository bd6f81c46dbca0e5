# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""C extensions, compiled on first use by cffi (API mode) and kept in a cache folder."""

import atexit
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

BUILD_DIR_VARIABLE = "NULLMR_BUILD_DIR"
VERBS_HEADER = "infiniband/verbs.h"

_PACKAGES = """\
Compiling needs a C compiler, the Python headers and the libibverbs headers:
  Debian, Ubuntu:  apt install gcc python3-dev libibverbs-dev
  Fedora, RHEL:    dnf install gcc python3-devel rdma-core-devel
  SUSE:            zypper install gcc python3-devel rdma-core-devel"""


class BuildError(RuntimeError):
    """A C extension could not be compiled; the message has the compiler's output and the packages to install."""


def extension(
    name: str, cdef: str, source: str, libraries: Sequence[str] = (), cflags: Sequence[str] = ("-O2",)
) -> Any:
    """The cffi module (with `.ffi` and `.lib`) of this declaration and C source, compiled if the cache has none.

    It is loaded with RTLD_GLOBAL | RTLD_NOW, so that the functions it defines come before those of libraries loaded
    later (dlopen(3)); `module.__file__` is the path of the shared object. Raises BuildError if it does not compile.
    """
    unique = _unique(name, cdef, source, libraries, cflags)
    if unique in sys.modules:
        return sys.modules[unique]
    return _load(unique, built(name, cdef, source, libraries, cflags))


def built(name: str, cdef: str, source: str, libraries: Sequence[str] = (), cflags: Sequence[str] = ("-O2",)) -> Path:
    """The shared object that `extension` would load, compiled if the cache has none. Raises BuildError."""
    unique = _unique(name, cdef, source, libraries, cflags)
    path = build_dir() / (unique + EXTENSION_SUFFIXES[0])
    if not path.exists():
        _compile(unique, cdef, source, libraries, cflags, path)
    return path


def _unique(name: str, cdef: str, source: str, libraries: Sequence[str], cflags: Sequence[str]) -> str:
    return f"{name}_{_digest(name, cdef, source, *libraries, *cflags)}"


def cached_text(name: str, make: Callable[[], str], *key: str) -> str:
    """What `make()` returns, kept in the cache folder; made anew when `key`, the compiler or verbs.h changes."""
    file = build_dir() / f"{name}_{_digest(name, *key)}.txt"
    if file.exists():
        return file.read_text()
    text = make()
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f"{name}-", delete=False) as scratch:
        scratch.write(text)
    os.replace(scratch.name, file)
    return text


def preprocess(source: str) -> str:
    """The C source after the preprocessor, with its line markers. Raises BuildError if the compiler refuses it."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    try:
        run = subprocess.run([compiler, "-E", "-"], input=source, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{compiler}: {error.strerror}\n{_PACKAGES}") from error
    if run.returncode:
        raise BuildError(f"{compiler} -E fails.\n{run.stderr}\n{_PACKAGES}")
    return run.stdout


def build_dir() -> Path:
    """The cache folder: $NULLMR_BUILD_DIR, else .build in the source tree, else (unwritable) one of this process."""
    wanted = os.environ.get(BUILD_DIR_VARIABLE)
    folder = Path(wanted) if wanted else Path(__file__).resolve().parent.parent / ".build"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        if wanted:
            raise BuildError(f"{BUILD_DIR_VARIABLE}={wanted}: cannot write there ({error.strerror})") from error
    return _private_dir()


def header_path(header: str = VERBS_HEADER) -> Path:
    """Where the C compiler would find a system header. Raises BuildError if nowhere."""
    named = [
        root for variable in ("CPATH", "C_INCLUDE_PATH") for root in os.environ.get(variable, "").split(os.pathsep)
    ]
    for root in (*filter(None, named), "/usr/local/include", "/usr/include"):
        if (path := Path(root) / header).exists():
            return path
    raise BuildError(f"{header} is not installed.\n{_PACKAGES}")


_private: list[Path] = []


def _private_dir() -> Path:
    if not _private:
        _private.append(Path(tempfile.mkdtemp(prefix="nullmr-build-")))
        atexit.register(shutil.rmtree, _private[0], ignore_errors=True)
    return _private[0]


def _digest(*parts: str) -> str:
    """A key of everything the binary depends on: text, flags, the interpreter's ABI, the verbs header."""
    abi = (EXTENSION_SUFFIXES[0], sys.version, sysconfig.get_config_var("CC") or "")
    hashed = hashlib.sha256()
    for part in (*parts, *abi, os.environ.get("CFLAGS", ""), header_path().read_text(errors="replace")):
        hashed.update(part.encode())
        hashed.update(b"\0")
    return hashed.hexdigest()[:16]


_BUILDER = """
import cffi, json, sys
job = json.load(sys.stdin)
ffi = cffi.FFI()
ffi.cdef(job["cdef"])
ffi.set_source(job["name"], job["source"], libraries=job["libraries"], extra_compile_args=job["cflags"])
try:
    ffi.compile(tmpdir=job["folder"], target=job["file"])
except Exception as error:  # setuptools raises several unrelated types; the compiler has printed why
    sys.exit(str(error))
"""


def _compile(name: str, cdef: str, source: str, libraries: Sequence[str], cflags: Sequence[str], target: Path) -> None:
    """Build in a folder of our own, then rename: concurrent builders each see a whole file or none.

    A process of its own keeps setuptools, and what it changes in the standard library, out of this one.
    """
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=target.parent) as folder:
        job = {"name": name, "cdef": cdef, "source": source, "libraries": list(libraries), "cflags": list(cflags)}
        job |= {"folder": folder, "file": target.name}
        build = subprocess.run(
            [sys.executable, "-c", _BUILDER], input=json.dumps(job), capture_output=True, text=True, check=False
        )
        built = Path(folder) / target.name
        if build.returncode or not built.exists():
            raise BuildError(f"{name} does not compile.\n{build.stdout}\n{build.stderr}\n{_PACKAGES}")
        os.replace(built, target)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_GLOBAL | os.RTLD_NOW)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.setdlopenflags(flags)
    sys.modules[name] = module
    return module
