# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Finding a kernel image, the folder of its modules, and among these the ones that a soft-RoCE guest needs."""

from __future__ import annotations

import glob
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vm.host import VmError

# In the order of loading. rdma_rxe asks for crc32_generic by another name than the module's, and what siw needs for
# crc32c_generic; newer kernels have these built in. Not every kernel has siw, and rdma_ucm, which is for rdma_cm.
WANTED_MODULES = (
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "dummy",
    "crc32_generic",
    "crc32c_generic",
    "ib_uverbs",
    "rdma_rxe",
    "siw",
    "rdma_ucm",
)
OPTIONAL_MODULES = {"crc32_generic", "crc32c_generic", "siw", "rdma_ucm"}

# Folders of /lib/modules/RELEASE in the order of depmod.d(5): a driver that was built apart from the kernel takes the
# place of the kernel's own.
SEARCH = ("updates", "extra", "kernel", "weak-updates")


@dataclass(frozen=True)
class Kernel:
    """A kernel image (bzImage or vmlinux), the folder with its modules, and its release as `uname -r` gives it."""

    image: Path
    modules: Path
    release: str


def debian_kernel(cache: Path) -> Kernel:
    """The kernel that linux-image-amd64 stands for, downloaded by apt and unpacked (not installed) below `cache`.

    One that is already there is used as it is. Raises VmError where apt cannot give it.
    """
    unpacked = cache / "debian"
    if not unpacked.is_dir():
        _download_debian_kernel(cache, unpacked)
    images = list((unpacked / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise VmError(f"{unpacked}/boot: expected one vmlinuz-*, found {len(images)}; remove {unpacked} and try again")
    return find_kernel(images[0], modules=None)


def _download_debian_kernel(cache: Path, unpacked: Path) -> None:
    if not shutil.which("apt-get"):
        raise VmError(
            "no apt-get here to fetch Debian's kernel with: name an installed kernel that has rdma_rxe, "
            "for instance --kernel /boot/vmlinuz-$(uname -r)"
        )
    packages = re.findall(r"Depends: (linux-image-\S+)", _run(["apt-cache", "depends", "linux-image-amd64"]))
    if not packages:
        raise VmError(
            "apt has no package linux-image-amd64: try apt-get update, or name a kernel that has rdma_rxe, "
            "for instance --kernel /boot/vmlinuz-$(uname -r)"
        )
    download = cache / "download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True)
    print(f"vm: fetching {packages[0]} (70 MB, once; kept in {cache})", flush=True)
    # As root, apt would fetch as the user _apt, who may not write into this folder.
    _run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", packages[0]], cwd=download)
    (package,) = download.glob("*.deb")
    _run(["dpkg", "-x", str(package), str(download / "unpacked")])
    (download / "unpacked").rename(unpacked)
    shutil.rmtree(download)


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise VmError(f"`{' '.join(command)}` failed with status {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def find_kernel(image: Path, modules: Path | None) -> Kernel:
    """The kernel in the file `image`, its modules in `modules` or else where packages and build trees have them.

    Raises VmError for a file that is no x86 kernel, and for modules that are not found.
    """
    if not image.is_file():
        raise VmError(f"{image}: no such kernel image")
    image = image.resolve()
    release = kernel_release(image)
    folders = [modules] if modules else _module_folders(image, release)
    for folder in folders:
        if (folder / "modules.builtin").is_file():
            return Kernel(image, folder.resolve(), release)
    raise VmError(
        f"{image}: found no modules of {release} (a folder with a file modules.builtin): "
        f"looked in {', '.join(map(str, folders))}; name the folder with --modules DIR"
    )


def _module_folders(image: Path, release: str) -> list[Path]:
    """Where to look: beside an unpacked package, in this machine's own folder, in a build tree."""
    folders = [image.parent.parent / "lib/modules" / release, Path("/lib/modules") / release]
    if image.match("arch/x86/boot/bzImage"):
        folders.append(image.parents[3])
    if image.name == "vmlinux":
        folders.append(image.parent)
    return folders


def kernel_release(image: Path) -> str:
    """The release in a bzImage's boot header (Documentation/arch/x86/boot.rst) or in a vmlinux's banner.

    Raises VmError if the file is neither.
    """
    content = image.read_bytes()
    if content[0x202:0x206] == b"HdrS":
        start = 0x200 + struct.unpack_from("<H", content, 0x20E)[0]
        return content[start:].split(maxsplit=1)[0].decode()
    banner = re.search(rb"Linux version (\d\S*) \(", content) if content.startswith(b"\x7fELF") else None
    if banner is None:
        raise VmError(f"{image}: neither an x86 bzImage nor a vmlinux")
    return banner[1].decode()


def bootable_image(kernel: Kernel, cache: Path) -> Path:
    """The uncompressed kernel, kept below `cache`: emulating its decompression would take seconds.

    The image itself where there is no tool for its compression, or where QEMU could not start the uncompressed
    kernel because it was built without CONFIG_PVH.
    """
    stamp = kernel.image.stat()
    vmlinux = cache / f"vmlinux-{kernel.release}-{stamp.st_size}-{stamp.st_mtime_ns}"
    if vmlinux.is_file():
        return vmlinux
    content = kernel.image.read_bytes()
    if content.startswith(b"\x7fELF"):
        return kernel.image
    elf = bzimage_payload(content)
    # The ELF note that QEMU asks for: owner "Xen", type 18 (XEN_ELFNOTE_PHYS32_ENTRY), 4 or 8 bytes long.
    if not any(struct.pack("<3I4s", 4, size, 18, b"Xen") in elf for size in (4, 8)):
        return kernel.image
    cache.mkdir(parents=True, exist_ok=True)
    for outdated in cache.glob(f"vmlinux-{glob.escape(kernel.release)}-*"):
        outdated.unlink()
    partial = vmlinux.with_suffix(".partial")
    partial.write_bytes(elf)
    partial.rename(vmlinux)
    return vmlinux


def bzimage_payload(bzimage: bytes) -> bytes:
    """The decompressed kernel inside a bzImage (boot header fields setup_sects, payload_offset, payload_length)."""
    setup_sectors = bzimage[0x1F1] or 4
    offset, length = struct.unpack_from("<2I", bzimage, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    return decompress(bzimage[start : start + length])


_DECOMPRESSORS = {
    b"\xfd7zXZ\0": ["xz", "-dc", "--single-stream"],
    b"\x1f\x8b": ["gzip", "-dc"],
    b"\x28\xb5\x2f\xfd": ["zstd", "-dc"],
    b"\x02\x21\x4c\x18": ["lz4", "-dc"],
}


def decompress(content: bytes) -> bytes:
    """The decompressed bytes; `content` itself where it is not compressed or its tool is not installed.

    The status of the tool says nothing: in a bzImage, the size that follows the compressed kernel is an error to some.
    """
    for magic, command in _DECOMPRESSORS.items():
        if content.startswith(magic) and shutil.which(command[0]):
            return subprocess.run(command, input=content, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return content


def guest_modules(kernel: Kernel) -> dict[str, bytes]:
    """The modules to load in the guest: name -> content of the .ko file, in the order of loading.

    Of several files of one module it is the one that depmod takes. Modules that are built into the kernel are left out.
    Raises VmError for those that the kernel does not have at all,
    and for those that were built for another kernel.
    """
    builtin = builtin_modules(kernel)
    files = module_files(kernel.modules)
    missing = [name for name in WANTED_MODULES if name not in builtin | files.keys() | OPTIONAL_MODULES]
    if missing:
        raise VmError(f"{kernel.modules}: kernel {kernel.release} has no {', '.join(missing)}, built in or as a module")
    content: dict[str, bytes] = {}

    def depends(name: str) -> list[str]:
        content[name] = decompress(files[name].read_bytes())
        if not content[name].startswith(b"\x7fELF"):
            raise VmError(f"{files[name]}: cannot be decompressed: no xz, gzip or zstd for it on this machine")
        built_for = modinfo(content[name], "vermagic").split(" ")[0]
        if built_for != kernel.release:
            raise VmError(f"{files[name]}: built for kernel {built_for}, but {kernel.image} is {kernel.release}")
        needed = [module_name(module) for module in modinfo(content[name], "depends").split(",") if module]
        return [module for module in needed if module not in builtin]

    loadable = [name for name in WANTED_MODULES if name in files and name not in builtin]
    return {name: content[name] for name in load_order(loadable, depends)}


def has_module(kernel: Kernel, name: str) -> bool:
    """Built in or as a file."""
    return name in builtin_modules(kernel) | module_files(kernel.modules).keys()


def builtin_modules(kernel: Kernel) -> set[str]:
    return {module_name(line) for line in (kernel.modules / "modules.builtin").read_text().split()}


def module_files(folder: Path) -> dict[str, Path]:
    """Module -> its file, of several the one in the folder that comes first in SEARCH."""

    def place(path: Path) -> tuple[int, Path]:
        top = path.relative_to(folder).parts[0]
        return (SEARCH.index(top) if top in SEARCH else SEARCH.index("kernel"), path)

    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.ko*"), key=place):
        files.setdefault(module_name(path.name), path)
    return files


def module_name(path: str) -> str:
    """A module's name as lsmod shows it, from the name of its file."""
    return Path(path).name.split(".ko")[0].replace("-", "_")


def modinfo(module: bytes, field: str) -> str:
    """What modinfo(8) shows of a .ko file's field, "" if it has none."""
    value = re.search(rb"\0%s=([^\0]*)\0" % field.encode(), module)
    return value[1].decode() if value else ""


def load_order(names: Iterable[str], depends: Callable[[str], Iterable[str]]) -> list[str]:
    """`names` and all that they depend on, each once and after its own dependencies."""
    order: list[str] = []

    def add(name: str) -> None:
        if name not in order:
            for needed in depends(name):
                add(needed)
            order.append(name)

    for name in names:
        add(name)
    return order
