"""Everything that needs a GPU, in one command: builds, tests, checks memory and races, measures. `make gpu-check` runs it.

    PYTHONPATH=src python -m benchmarks.gpu_check [--scale 1.0]

Needs a CUDA device, torch with CUDA, nvcc and cmake, and no network. Takes less than 8 minutes: a part that outlasts its
time is ended and has failed. A part that fails does not keep the others from running. The kernels are built into
build/gpu for the device that is there; results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_machine import ROOT, Machine, kernel_filter, look

BUILD = ROOT / "build" / "gpu"
RESULTS = ROOT / "benchmarks" / "results"

# Seconds that each part may take; together with the look at the machine less than 8 minutes.
LIMITS_S = {"build": 100.0, "tests": 160.0, "memcheck": 50.0, "racecheck": 50.0, "benchmark": 105.0}

# Under the sanitizer each launch takes a hundred times as long, so a few cases: every kernel, both kinds of memory.
SANITIZED = (
    "tests/gpu/test_khop.py::test_random_graphs[3]",
    "tests/gpu/test_khop.py::test_larger_batches[fanouts2-False]",
    "tests/gpu/test_ops.py::test_relabel[1]",
    "tests/gpu/test_ops.py::test_neighbor_sums[2]",
    "tests/gpu/test_aggregate.py::test_equals_the_cpu[0]",
    "tests/gpu/test_gather.py::test_gather[5-pinned]",
    "tests/gpu/test_gather.py::test_gather_decodes[1-int8-device]",
    "tests/gpu/test_gather.py::test_rank_find[0]",
    "tests/gpu/test_device_store.py::test_the_same_as_on_the_cpu[hybrid-0.5-small_hetero]",
)
_BROKEN_KERNEL = 86  # what the sanitizer exits with where it finds something


@dataclass(frozen=True)
class Part:
    """One line of the closing table."""

    name: str
    ok: bool
    said: str
    seconds: float = 0.0


Runs = Callable[[Sequence[str], float, dict[str, str]], int | None]


def run(command: Sequence[str], limit_s: float, env: dict[str, str]) -> int | None:
    """The command's exit code; None where it was ended, with all that it started, because its time was up."""
    print(f"$ {' '.join(command)}", flush=True)
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **env}, start_new_session=True)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Check:
    """Runs the parts on a machine. runs: how a command is run."""

    def __init__(self, machine: Machine, *, scale: float = 1.0, runs: Runs = run, build: Path = BUILD) -> None:
        self.machine, self._scale, self._run, self._build = machine, scale, runs, build
        paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # torch may be there
        self._env = {"GLT_KERNELS_DIR": str(build), "PYTHONPATH": os.pathsep.join(paths)}
        self.measured: dict[str, Any] = {}

    def all(self) -> list[Part]:
        """Every part, whatever comes of those before; without kernels the others cannot run and have failed."""
        self._build.mkdir(parents=True, exist_ok=True)
        parts = [self._timed("build", self.build)]
        for name, work in (
            ("tests", self.tests),
            ("memcheck", lambda: self.sanitize("memcheck")),
            ("racecheck", lambda: self.sanitize("racecheck")),
            ("benchmark", self.benchmark),
        ):
            parts.append(self._timed(name, work) if parts[0].ok else Part(name, False, "not run: there are no kernels"))
        return parts

    def _timed(self, name: str, work: Callable[[], tuple[bool, str]]) -> Part:
        begin = time.monotonic()
        ok, said = work()
        return Part(name, ok, said, time.monotonic() - begin)

    def build(self) -> tuple[bool, str]:
        """Host and device kernels by cmake, for this machine's device alone."""
        begin = time.monotonic()
        options = {
            "GLT_CUDA": "ON",
            "GLT_WERROR": "ON",
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CUDA_COMPILER": self.machine.nvcc,
            "GLT_CUDA_ARCHITECTURES": f"{self.machine.capability}-real",
        }
        configure = [self.machine.cmake, "-S", str(ROOT), "-B", str(self._build)]
        configure += [f"-D{name}={value}" for name, value in options.items()]
        code = self._run(configure, LIMITS_S["build"], {})
        if code == 0:
            left = LIMITS_S["build"] - (time.monotonic() - begin)
            code = self._run(
                [self.machine.cmake, "--build", str(self._build), "--parallel", str(os.cpu_count() or 1)], left, {}
            )
        return code == 0, f"sm_{self.machine.capability}" if code == 0 else ended("build", code)

    def tests(self) -> tuple[bool, str]:
        """All tests that are marked `gpu`. One that is skipped has failed, and so has a run without tests."""
        report = self._build / "tests.xml"
        report.unlink(missing_ok=True)
        code = self._run(
            [*_PYTEST, "-m", "gpu", f"--junitxml={report}", *gpu_test_files()], LIMITS_S["tests"], self._env
        )
        if code is None or not report.exists():
            return False, ended("tests", code)
        return verdict(report.read_text(), code)

    def sanitize(self, tool: str) -> tuple[bool, str]:
        """Some of the tests under compute-sanitizer, which looks at our kernels alone."""
        program = self.machine.sanitizer
        if program is None:
            return True, "not run: compute-sanitizer is not on the PATH"
        report = self._build / f"{tool}.xml"
        report.unlink(missing_ok=True)
        options = ["--tool", tool, "--error-exitcode", str(_BROKEN_KERNEL), *kernel_filter(program)]
        if tool == "memcheck":
            options += [
                "--report-api-errors",
                "no",
            ]  # torch asks drivers for functions that they may lack; ours are raised
        # without torch's cache an access beyond a tensor is one beyond an allocation
        env = {**self._env, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        tests = [*_PYTEST, "-m", "gpu", f"--junitxml={report}", *SANITIZED]
        code = self._run([program, *options, *tests], LIMITS_S[tool], env)
        if code == _BROKEN_KERNEL:
            return False, "it found errors; see above"
        if code is None or not report.exists():
            return False, ended(tool, code)
        return verdict(report.read_text(), code)

    def benchmark(self) -> tuple[bool, str]:
        """The table of benchmarks/gpu.py. Fails where a measure fails, or misses what it is to reach."""
        out = self._build / "benchmark.json"
        out.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.gpu", "--scale", str(self._scale), "--out", str(out)]
        code = self._run(command, LIMITS_S["benchmark"], self._env)
        if out.exists():
            self.measured = json.loads(out.read_text())
        if code != 0:
            return False, ended("benchmark", code)
        rows = self.measured.get("rows", [])
        short = [row["what"] for row in rows if row.get("reached") is False]
        said = f"{len(rows)} measures" + (f"; not reached: {'; '.join(short)}" if short else "")
        return bool(rows) and not short, said


_PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def ended(name: str, code: int | None) -> str:
    return f"ended after {LIMITS_S[name]:.0f} s" if code is None else f"exit code {code}; see above"


def gpu_test_files(root: Path = ROOT) -> list[str]:
    """The test files with tests for a GPU: no other is imported, since it may need packages that are not there."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return [str(f.relative_to(root)) for f in files if re.search(r"\bmark\.gpu\b", f.read_text())]


def verdict(junit: str, code: int) -> tuple[bool, str]:
    """Whether a run of tests is one, by its report. code: pytest's."""
    suites = list(ET.fromstring(junit).iter("testsuite"))
    count = {k: sum(int(s.get(k, "0")) for s in suites) for k in ("tests", "failures", "errors", "skipped")}
    passed = count["tests"] - count["failures"] - count["errors"] - count["skipped"]
    said = f"{passed} passed" + "".join(f", {n} {k}" for k, n in count.items() if n and k != "tests")
    if count["tests"] == 0:
        return False, "no tests were found"
    return passed == count["tests"] and code == 0, said if code in (0, 1) else f"{said}, exit code {code}"


def table(parts: Sequence[Part]) -> str:
    lines = ["| part | result | | s |", "| --- | --- | --- | --- |"]
    lines += [f"| {p.name} | {'ok' if p.ok else 'FAILED'} | {p.said} | {p.seconds:.0f} |" for p in parts]
    return "\n".join(lines)


def write_results(folder: Path, machine: Machine, parts: Sequence[Part], measured: dict[str, Any]) -> Path:
    """<gpu>.md and <gpu>.json; returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", machine.gpu).strip("-")
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    what = {"gpu": machine.gpu, "when": when, "versions": machine.versions, "parts": [asdict(p) for p in parts]}
    (folder / f"{name}.json").write_text(json.dumps(what | {"benchmark": measured}, indent=1) + "\n")
    versions = ", ".join(f"{k} {v}" for k, v in machine.versions.items())
    pieces = [f"# {machine.gpu}", f"`make gpu-check`, {when}. {versions}.", table(parts)]
    pieces += [measured[k] for k in ("markdown", "notes") if measured.get(k)]
    path = folder / f"{name}.md"
    path.write_text("\n\n".join(pieces) + "\n")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the benchmark's graph; 1: like ogbn-products")
    args = parser.parse_args(arguments)
    machine, complaints = look()
    if machine is None:
        print("gpu-check cannot run here:", *complaints, sep="\n  ", file=sys.stderr)
        return 1
    check = Check(machine, scale=args.scale)
    parts = check.all()
    path = write_results(RESULTS, machine, parts, check.measured)
    print(
        f"\n{check.measured.get('markdown', '')}\n\n{table(parts)}\n\nwritten to {path.relative_to(ROOT)}", flush=True
    )
    return 0 if all(p.ok for p in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
