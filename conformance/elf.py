# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What tells one build of a shared object from another."""

import hashlib
from pathlib import Path


def build_id(path: Path) -> str:
    """What Library.build_id says of a shared object, or of a folder of them. Empty for what cannot be read."""
    from elftools.common.exceptions import ELFError  # only reports need it, and it takes long to import
    from elftools.elf.elffile import ELFFile
    from elftools.elf.segments import NoteSegment

    if path.is_dir():
        modules = [f"{module.relative_to(path)} {build_id(module)}\n" for module in sorted(path.rglob("*.so"))]
        return f"sha256:{hashlib.sha256(''.join(modules).encode()).hexdigest()}" if modules else ""
    try:
        with path.open("rb") as file:
            parts = [part for part in ELFFile(file).iter_segments() if isinstance(part, NoteSegment)]
            for note in (note for part in parts for note in part.iter_notes()):
                if note["n_type"] == "NT_GNU_BUILD_ID":
                    return str(note["n_desc"])
        return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except (OSError, ELFError):
        return ""
