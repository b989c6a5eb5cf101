"""Builds the device library from nvcc's own output: its host objects, which launch and pack arguments as they do on a GPU,
and the PTX that belongs to them, translated."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.ptx.faults import FAULTS, Fault, plant
from tests.ptx.ptx import Kernel, read_ptx
from tests.ptx.translate import Translator

ROOT = Path(__file__).parents[2]
NATIVE = Path(__file__).parent / "native"
ARCHITECTURE = os.environ.get("GLT_PTX_ARCHITECTURE", "90")  # whose PTX; what `make install` builds for

_INCLUDES = [f"-I{ROOT / 'cuda'}", f"-I{ROOT / 'cuda' / 'include'}", f"-I{NATIVE}"]
# A jump from one fiber's stack to another is what fortified longjmp refuses. Unused labels and registers are PTX's.
_GCC = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-Wall", "-Wno-unused"]
_DEADLINE_S = 600


def nvcc() -> str | None:
    return shutil.which("nvcc")


def sources() -> list[Path]:
    """Every file with kernels: a new one is among them by being there."""
    return [*sorted((ROOT / "cuda").glob("*.cu")), *sorted(NATIVE.glob("*.cu"))]


def build(folder: Path, faults: list[Fault] = FAULTS) -> Path:
    """The library, in ``folder``."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        longest_first = sorted(sources(), key=lambda each: each.stem != "khop")
        jobs = [pool.submit(_translated, folder, source, faults) for source in longest_first]
        jobs += [pool.submit(_own, folder, source) for source in sorted(NATIVE.glob("*.cpp"))]
        objects = [each for job in jobs for each in job.result()]
    library = folder / "libglt_ptx.so"
    _run("g++", "-shared", *objects, "-o", library, "-pthread", "-Wl,-z,defs")
    return library


def _own(folder: Path, source: Path) -> list[Path]:
    """By nvcc, which knows where CUDA's headers are."""
    to = folder / f"{source.stem}.own.o"
    flags = [flag for each in _GCC for flag in ("-Xcompiler", each)]
    _run(nvcc(), *flags, *_INCLUDES, "-c", source, "-o", to)
    return [to]


def _translated(folder: Path, source: Path, faults: list[Fault]) -> list[Path]:
    """The host object of one file, and that of its kernels."""
    place = folder / source.stem
    place.mkdir()
    host = place / "host.o"
    target = f"arch=compute_{ARCHITECTURE},code=compute_{ARCHITECTURE}"
    flags = ["-std=c++17", "-O3", "-lineinfo", "-Xcompiler", "-fPIC,-fvisibility=hidden", "-gencode", target]
    _run(nvcc(), *flags, *_INCLUDES, "-c", source, "--keep", "--keep-dir", place, "-o", host)
    kernels = read_ptx((place / f"{source.stem}.ptx").read_text())
    if not kernels:
        return [host]
    code = place / "kernels.cpp"
    code.write_text(translated_file(kernels, faults))
    _run("g++", *_GCC, *_INCLUDES, "-c", code, "-o", place / "kernels.o")
    return [host, place / "kernels.o"]


def translated_file(kernels: list[Kernel], faults: list[Fault]) -> str:
    """The C++ of one file's kernels, and of those that have faults."""
    all_of_them = [(kernel, "") for kernel in kernels]
    for fault in faults:
        all_of_them += [(broken, fault.name) for kernel in kernels if (broken := plant(fault, kernel)) is not None]
    out, table = ['#include "simt.h"', "namespace simt {", "namespace {"], []
    for k, (kernel, fault_name) in enumerate(all_of_them):
        translator = Translator(kernel)
        out.append(translator.function(f"kernel_{k}"))
        sites = [f'{{"{each.where}", "{each.text}"}}' for each in translator.sites] or ['{"", ""}']
        out.append(f"const Site sites_{k}[] = {{{', '.join(sites)}}};")
        params = ", ".join(f"{{{offset}, {nbytes}}}" for offset, nbytes in kernel.parameters.values())
        numbers = f"{kernel.shared_bytes}, {kernel.max_threads}, {{{params}}}"
        table.append(f'{{"{kernel.name}", "{fault_name}", kernel_{k}, {numbers}, sites_{k}}}')
    return "\n".join(
        [*out, f"const Enter enter({{{', '.join(table)}}});", "}  // namespace", "}  // namespace simt", ""]
    )


def _run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=_DEADLINE_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}"[-8000:])
