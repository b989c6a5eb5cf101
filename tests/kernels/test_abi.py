"""The C ABI as Python declares it is the one of the headers: every function, every struct, every number.

ctypes checks nothing by itself: an argument of another width would be passed on, and read as something else.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from ctypes import c_char_p, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import pytest

from glt_lightning import kernels as ops
from glt_lightning.base import types
from glt_lightning.kernels import (
    aggregate,
    assign,
    build,
    build as encoding,
    disk,
    embedding,
    excluded,
    file_map,
    native,
    rows as gather,
    trees,
    walks,
)
from glt_lightning.kernels.cuda import khop_batch, native as cuda_native
from glt_lightning.workers.producer import request_codec

INCLUDE = Path(__file__).parents[2] / "cuda" / "include" / "glt"
HEADERS = sorted(path.name for path in INCLUDE.glob("*.h"))
NUMBERS = {"int32_t": c_int32, "int64_t": c_int64, "uint64_t": c_uint64}

STRUCTS = {
    "glt_graph": native.GraphStruct,
    "glt_replaced": native.ReplacedStruct,
    "glt_workspace": native.WorkspaceStruct,
    "glt_picks": native.PicksStruct,
    "glt_merge_call": native.MergeStruct,
    "glt_rows": assign._RowsStruct,
    "glt_pairs": assign._PairsStruct,
    "glt_buckets": build._BucketStruct,
    "glt_edges": aggregate.EdgesStruct,
    "glt_disk": disk._DiskStruct,
    "glt_khop_shape": khop_batch._Shape,
    "glt_shards": gather._ShardsStruct,
    "glt_excluded": excluded.ExcludedStruct,
    "glt_row_gradients": embedding.RowGradientsStruct,
    "glt_trees": trees.TreesStruct,
    "glt_walk_rule": walks.RuleStruct,
}
CONSTANTS = {
    "GLT_ABI_VERSION": native.ABI_VERSION,
    "GLT_MAX_HOPS": request_codec.MOST_HOPS,
    "GLT_MAX_FANOUT": types.MAX_FANOUT,
    **{
        f"GLT_{name}": getattr(native, name)
        for name in ["OK", "GROW", "BAD_ID", "BAD_ROW", "BAD_ARG", "CUDA", "NO_MEMORY", "NO_THREAD", "THROWN"]
    },
    **{f"GLT_{name.upper()}": each.number for name, each in encoding.ENCODINGS.items()},
    **{f"GLT_AGGREGATE_{name.upper()}": number for name, number in aggregate.KINDS.items()},
    **{f"GLT_VALUES_{name.upper()}": number for name, number in aggregate.VALUES.items()},
    "GLT_FLOAT32": gather.FLOAT32,
    "GLT_DISK_PAGE": disk.DiskFile.PAGE,
    "GLT_IO": disk._IO,
    "GLT_LOST": file_map._LOST,
    "GLT_SPARE_FANOUT": cuda_native.SPARE_FANOUT,
}


def code_of(header: str) -> str:
    """A header without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", (INCLUDE / header).read_text(), flags=re.DOTALL)


def ctype_of(declared: str) -> Any:
    """The ctypes type of an argument, a field or a result, from its declaration in C."""
    if "*" in declared:
        return c_char_p if "char" in declared else c_void_p
    return NUMBERS[declared.split()[0]]


def functions_of(header: str) -> dict[str, tuple[Any, list[Any]]]:
    """Name -> (type of the result, types of the arguments)."""
    found = {}
    for result, name, arguments in re.findall(r"GLT_API ([\w *]+?)\b(glt_\w+)\(([^;]*)\);", code_of(header)):
        words = [argument.strip() for argument in arguments.split(",")]
        found[name] = (ctype_of(result), [] if words == ["void"] else [ctype_of(word) for word in words])
    return found


def structs_of(header: str) -> dict[str, list[tuple[str, Any]]]:
    """Name -> its fields in order, each with its type. One line may declare several: ``int32_t *src, *dst;``."""
    found = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", code_of(header), flags=re.DOTALL):
        fields = found[name] = []
        for line in body.split(";")[:-1]:
            base = re.search(r"u?int\d+_t|void|glt_\w+", line)[0]
            for field in line.split(","):
                fields.append((re.findall(r"\w+", field)[-1], c_void_p if "*" in field else NUMBERS[base]))
    return found


def constants_of(header: str) -> dict[str, int]:
    code = code_of(header)
    found = re.findall(r"#define (GLT_\w+) (\d+)\s", code) + re.findall(r"\b(GLT_\w+) = (\d+)", code)
    return {name: int(value) for name, value in found}


def declared() -> dict[str, tuple[Any, list[Any]]]:
    """What the modules that call the CPU library have told ctypes of its functions."""
    library, names = native.library(), set(native._SIGNATURES)
    for info in pkgutil.iter_modules(ops.__path__, f"{ops.__name__}."):
        module = importlib.import_module(info.name)
        if module is not native:
            for each in [value for name, value in vars(module).items() if name.endswith("_library")]:
                each()
            names |= {name for table, value in vars(module).items() if table.endswith("_SIGNATURES") for name in value}
    return {name: (getattr(library, name).restype, list(getattr(library, name).argtypes)) for name in names}


def test_functions_of_the_cpu():
    headers = [header for header in HEADERS if header != "cuda.h"]
    assert declared() == {name: found for header in headers for name, found in functions_of(header).items()}


def test_functions_of_the_gpu():
    """Read from the table: the library itself may not be built here."""
    want = functions_of("cuda.h")
    assert want.pop("glt_cuda_error_text") == (c_char_p, [c_int32])  # declared where the library is loaded
    want["glt_abi_version"] = (c_int32, [])
    assert {name: (c_int32, list(types)) for name, types in cuda_native.SIGNATURES.items()} == want


@pytest.mark.parametrize("header", HEADERS)
def test_structs(header):
    for name, fields in structs_of(header).items():
        assert list(STRUCTS[name]._fields_) == fields, name


def test_every_struct_and_function_is_compared():
    """What the pattern above does not find would be compared with nothing."""
    assert {name for header in HEADERS for name in structs_of(header)} == set(STRUCTS)
    for header in HEADERS:
        code = code_of(header)
        assert code.count("typedef struct") == len(structs_of(header))
        assert len(re.findall(r"^GLT_API ", code, flags=re.MULTILINE)) == len(functions_of(header))


def test_every_structure_of_python_is_compared():
    modules = pkgutil.walk_packages(ops.__path__, f"{ops.__name__}.")
    files = [Path(importlib.util.find_spec(info.name).origin) for info in modules]
    names = [name for file in files for name in re.findall(r"class (\w+)\(ctypes.Structure\)", file.read_text())]
    assert sorted(names) == sorted(struct.__name__ for struct in STRUCTS.values())


def test_numbers():
    assert {name: value for header in HEADERS for name, value in constants_of(header).items()} == CONSTANTS
