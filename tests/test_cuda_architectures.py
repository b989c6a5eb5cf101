"""Which devices an installation builds the CUDA kernels for, with an nvidia-smi and an nvcc that only answer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KNOWN = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120)
ALL = "80-real;86-real;89-real;90-real;100-real;120-real;80-virtual;120-virtual"


def _cmake() -> str:
    beside = Path(sys.executable).with_name("cmake")
    return str(beside) if beside.exists() else shutil.which("cmake") or pytest.skip("needs cmake")


def _program(path: Path, said: str, status: int = 0) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        (None, {}, ""),
        ("No devices were found", {}, ""),
        ("9.0\n9.0", {}, "90-real;90-virtual"),
        ("12.0\n8.6", {}, "120-real;86-real;86-virtual;120-virtual"),
        ("7.5", {}, ""),
        ("10.7", {}, "103-virtual"),
        ("9.0", {"GLT_CUDA": "OFF"}, ""),
        (None, {"GLT_CUDA": "ON"}, ALL),
        ("9.0", {"GLT_CUDA": "ON"}, "90-real;90-virtual"),
        ("9.0", {"GLT_CUDA_ARCHITECTURES": "ALL"}, ALL),
        (None, {"GLT_CUDA_ARCHITECTURES": "80;86"}, "80;86"),
        (None, {"CMAKE_CUDA_ARCHITECTURES": "89"}, "89"),
    ],
)
def test_devices(tmp_path: Path, gpus: str | None, options: dict[str, str], expected: str) -> None:
    """``gpus``: what nvidia-smi says; None: it fails, as without a driver."""
    smi = _program(tmp_path / "bin/nvidia-smi", gpus or "", 0 if gpus else 9)
    nvcc = _program(tmp_path / "nvcc", "\n".join(f"compute_{each}" for each in KNOWN))
    given = {"GLT_CUDA": "AUTO", "GLT_CUDA_ARCHITECTURES": "AUTO"} | options
    script = tmp_path / "choose.cmake"
    script.write_text(
        f"cmake_policy(VERSION 3.18)\ninclude({ROOT}/cuda/architectures.cmake)\nglt_wanted_devices(devices)\nset(found)\n"
        f"if(devices)\n  glt_cuda_architectures(found {nvcc} ${{devices}})\nendif()\n"
        'message(STATUS "chosen=[${found}]")\n'
    )
    defines = [f"-D{name}={value}" for name, value in given.items()]
    run = subprocess.run(
        [_cmake(), *defines, "-P", script], env={"PATH": f"{smi.parent}:/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert f"chosen=[{expected}]" in run.stdout, run.stdout + run.stderr


def test_nothing_is_built_for_devices_that_are_not_there(tmp_path: Path) -> None:
    """However good the nvcc: its kernels would take minutes and serve nobody."""
    smi = _program(tmp_path / "bin/nvidia-smi", "", 9)
    nvcc = shutil.which("nvcc")
    path = ":".join([str(smi.parent), *([str(Path(nvcc).parent)] if nvcc else []), "/usr/bin:/bin"])
    command = [_cmake(), "-S", ROOT, "-B", tmp_path / "build"]
    run = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=True)
    assert "CUDA kernels: not built (GLT_CUDA=AUTO; devices: ;" in run.stdout
