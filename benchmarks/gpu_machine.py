"""What `make gpu-check` needs of a machine, and what it found there. Needs nothing but Python."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# What the package, its `gpu` tests and the benchmark import on the way; no downloads, no partitioners, no certificates.
PACKAGES = (
    "numpy",
    "torch",
    "lightning",
    "torch_geometric",
    "torchmetrics",
    "pyarrow",
    "scipy",
    "psutil",
    "tqdm",
    "pytest",
    "pytest_timeout",
)
_CUDA_BIN = ("/usr/local/cuda/bin", "/opt/cuda/bin")

# In a process of its own: the driver keeps memory of the device for whoever has asked it.
_ASK_TORCH = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": torch.cuda.device_count()}
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    found |= {"gpu": p.name, "capability": f"{p.major}{p.minor}", "memory_bytes": p.total_memory}
print(json.dumps(found))
"""

Which = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine on which everything needed is there.

    capability: of device 0, such as ``90``.  sanitizer: path of compute-sanitizer, or None.
    versions: of whatever the results depend on, by name.
    """

    gpu: str
    capability: str
    cmake: str
    nvcc: str
    sanitizer: str | None
    versions: dict[str, str]


def find(name: str, which: Which = shutil.which) -> str | None:
    """A program on the PATH, beside this Python, or where CUDA's toolkit puts its own."""
    found = which(name)
    if found is None and name in ("nvcc", "compute-sanitizer"):
        homes = [f"{home}/bin" for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
        found = next((f"{d}/{name}" for d in (*homes, *_CUDA_BIN) if os.access(f"{d}/{name}", os.X_OK)), None)
    beside = Path(sys.executable).parent / name
    return found or (str(beside) if os.access(beside, os.X_OK) else None)


def missing_packages(has: Callable[[str], object] = importlib.util.find_spec) -> list[str]:
    return [name for name in PACKAGES if not has(name)]


def ask_torch() -> dict[str, Any]:
    """What torch sees. Its keys ``gpu``, ``capability`` and ``memory_bytes`` are there with a device only."""
    answer = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=120)
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        return {"error": lines[-1]}
    return json.loads(answer.stdout)


def look(
    missing: Sequence[str] | None = None, torch_sees: Callable[[], dict[str, Any]] = ask_torch, which: Which = find
) -> tuple[Machine | None, list[str]]:
    """(the machine, no complaints), or (None, one line for each thing that is missing and what to do)."""
    missing = missing_packages() if missing is None else missing
    complaints = [f"Python {sys.version.split()[0]}: needs 3.11 or later."] if sys.version_info < (3, 11) else []
    complaints += [
        f"{name}: {sys.executable} cannot import it. Install it, or give another PYTHON." for name in missing
    ]
    tools = {name: which(name) for name in ("nvcc", "cmake", "c++")}
    complaints += [
        f"{name}: not found on the PATH. Install it, or put it there." for name, at in tools.items() if not at
    ]
    found = {} if "torch" in missing else torch_sees()
    if "error" in found:
        complaints.append(f"torch: {sys.executable} fails to import it or to see a device: {found['error']}")
    elif found and "gpu" not in found:
        built = f"built for CUDA {found['cuda']}" if found["cuda"] else "built without CUDA"
        complaints.append(
            f"torch {found['torch']}, {built}: sees no CUDA device. `nvidia-smi` says whether the driver does."
        )
    if complaints:
        return None, complaints
    return Machine(
        gpu=found["gpu"],
        capability=found["capability"],
        cmake=str(tools["cmake"]),
        nvcc=str(tools["nvcc"]),
        sanitizer=which("compute-sanitizer"),
        versions={
            "commit": commit(),
            "python": sys.version.split()[0],
            "torch": found["torch"],
            "cuda of torch": str(found["cuda"]),
            "nvcc": last_line([str(tools["nvcc"]), "--version"]),
            "driver": last_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        },
    ), []


def kernel_filter(sanitizer: str) -> list[str]:
    """The sanitizer's arguments for our kernels alone: their mangled names hold the namespace `glt`."""
    try:
        text = subprocess.run([sanitizer, "--help"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        text = ""
    older = "--kernel-regex" in text and "--kernel-name" not in text
    return ["--kernel-regex" if older else "--kernel-name", "kns=3glt"]


def commit() -> str:
    """The commit of this tree, with a + where files of it have been changed since."""
    said = last_line(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    changed = said != UNKNOWN and last_line(["git", "-C", str(ROOT), "status", "--porcelain", "-uno"]) != UNKNOWN
    return f"{said}+" if changed else said


UNKNOWN = "unknown"


def last_line(command: list[str]) -> str:
    """The last line that a command says, or `UNKNOWN` where it says nothing, fails or is not here."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    lines = done.stdout.strip().splitlines()
    return lines[-1].strip() if lines and done.returncode == 0 else UNKNOWN
