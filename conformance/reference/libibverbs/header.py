# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The declarations of the installed infiniband/verbs.h, as cffi wants them.

Taking them from the machine's own header makes struct layouts and function signatures those that the machine's
pyverbs was compiled with.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ... import native

# Types of other headers that verbs.h uses; "...;" leaves their layout to the compiler.
PRELUDE = """
typedef uint8_t __u8; typedef uint16_t __u16; typedef uint32_t __u32; typedef uint64_t __u64;
typedef int32_t __s32; typedef int64_t __s64;
typedef uint16_t __be16; typedef uint32_t __be32; typedef uint64_t __be64;
typedef uint64_t __aligned_u64;
typedef struct { ...; } pthread_mutex_t;
typedef struct { ...; } pthread_cond_t;
struct timespec { long tv_sec; long tv_nsec; ...; };
"""
# The same for pycparser, which knows neither stdint.h nor "...;".
_PARSER_PRELUDE = """
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long uint64_t; typedef int int32_t; typedef long int64_t;
typedef unsigned long size_t; typedef long ssize_t; typedef unsigned long uintptr_t;
""" + PRELUDE.replace("...;", "int opaque;")


@dataclass(frozen=True)
class Function:
    """A function, or the function pointer `field` of a struct: `result` and `arguments` are C text."""

    name: str
    result: str
    arguments: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def pointer(self) -> bool:
        return self.result.endswith("*")


@dataclass(frozen=True)
class Header:
    types: str
    """Structs, unions and enums, in order: text for cffi.FFI.cdef."""
    functions: tuple[Function, ...]
    """The functions that libibverbs exports."""
    operations: dict[str, tuple[Function, ...]]
    """The function pointers of a struct, by its name."""


def load(structs: tuple[str, ...], tables: tuple[str, ...]) -> Header:
    """Declarations of the installed header: `structs` and what they contain, the function pointers of `tables`."""
    text = native.cached_text(
        "verbs_header",
        lambda: json.dumps(asdict(_derive(structs, tables))),
        *structs,
        *tables,
        Path(__file__).read_text(),
    )
    found = json.loads(text)

    def functions(entries: list[dict[str, Any]]) -> tuple[Function, ...]:
        return tuple(
            Function(entry["name"], entry["result"], tuple(entry["arguments"]), tuple(entry["names"]))
            for entry in entries
        )

    operations = {table: functions(entries) for table, entries in found["operations"].items()}
    return Header(found["types"], functions(found["functions"]), operations)


def _derive(structs: tuple[str, ...], tables: tuple[str, ...]) -> Header:
    from pycparser import c_ast, c_generator, c_parser

    tree = c_parser.CParser().parse(_PARSER_PRELUDE + _own_text())
    own = tree.ext[len(c_parser.CParser().parse(_PARSER_PRELUDE).ext) :]
    generate = c_generator.CGenerator().visit
    types = {}
    functions = []
    for node in own:
        kind = node.type if isinstance(node, c_ast.Decl) else None
        if isinstance(kind, (c_ast.Struct, c_ast.Union)) and kind.decls:
            types[kind.name] = kind
        elif isinstance(kind, c_ast.Enum) and kind.values:
            types[kind.name or f"anonymous {len(types)}"] = kind
        elif isinstance(kind, c_ast.FuncDecl) and re.match(r"_?ibv_", node.name):
            functions.append(_function(node.name, kind, generate))

    wanted = set()

    def want(name: str) -> None:
        if name in types and name not in wanted:
            wanted.add(name)
            for part in _contained(types[name], c_ast):
                want(part)

    for name in structs:
        if name not in types:
            raise native.BuildError(f"{native.VERBS_HEADER} has no struct {name}")
        want(name)
    text = []
    for name, node in types.items():
        if isinstance(node, c_ast.Enum):
            enumerators = ", ".join(value.name for value in node.values.enumerators)
            text.append(f"enum {node.name or ''} {{ {enumerators}, ... }};")
        elif name in wanted:
            text.append(re.sub(r"\[\w*[A-Z]\w*\]", "[...]", generate(node)) + ";")
    operations = {table: tuple(_pointers(types[table], c_ast, generate)) for table in tables}
    return Header("\n".join(text), tuple(functions), operations)


def _own_text() -> str:
    """verbs.h and the rdma/ headers after the preprocessor, without the bodies of inline functions."""
    marked = native.preprocess(f"#define __attribute__(x)\n#define __extension__\n#include <{native.VERBS_HEADER}>\n")
    lines: list[str] = []
    keep = False
    for line in marked.splitlines():
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            keep = "/infiniband/" in marker[1] or "/rdma/" in marker[1]
        elif keep:
            lines.append(line)
    return _without_inline_functions("\n".join(lines))


def _without_inline_functions(text: str) -> str:
    kept = []
    position = 0
    for start in re.finditer(r"static inline\b", text):
        if start.start() < position:
            continue
        kept.append(text[position : start.start()])
        position = text.index("{", start.end()) + 1
        declared = text.find(";", start.end())
        if 0 <= declared < position:
            position = declared + 1
            continue
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
    kept.append(text[position:])
    return "".join(kept)


def _contained(node: Any, c_ast: Any) -> Iterator[str]:
    """Names of the structs and unions that a struct has as fields (those it only points to may stay opaque)."""
    for field in node.decls or ():
        kind = field.type
        while isinstance(kind, c_ast.ArrayDecl):
            kind = kind.type
        if isinstance(kind, c_ast.TypeDecl):
            kind = kind.type
        if isinstance(kind, (c_ast.Struct, c_ast.Union)):
            if kind.decls:
                yield from _contained(kind, c_ast)
            else:
                yield kind.name


def _pointers(struct: Any, c_ast: Any, generate: Any) -> Iterator[Function]:
    for field in struct.decls:
        if isinstance(field.type, c_ast.PtrDecl) and isinstance(field.type.type, c_ast.FuncDecl):
            yield _function(field.name, field.type.type, generate)


def _function(name: str, node: Any, generate: Any) -> Function:
    arguments, names = [], []
    for position, argument in enumerate(node.args.params if node.args else ()):
        text = generate(argument)
        if text == "void":
            continue
        if getattr(argument, "name", None) is None:
            names.append(f"a{position}")
            arguments.append(f"{text} a{position}")
        else:
            names.append(argument.name)
            arguments.append(text)
    result = re.sub(rf"\s*\b{name}$", "", generate(node.type)).strip()
    return Function(name, result, tuple(arguments), tuple(names))
