"""`make gpu-check` without a GPU: what it asks of a machine, what it counts as a failure, what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import gpu_check, gpu_machine
from benchmarks.gpu_check import Check, Part, gpu_test_files, table, verdict, write_results
from benchmarks.gpu_machine import ROOT, Machine, look
from tests.helpers.family import settle

MACHINE = Machine(
    gpu="NVIDIA H200 (fake)",
    capability="90",
    cmake="cmake",
    nvcc="/cuda/nvcc",
    sanitizer="/cuda/san",
    versions={"a": "1"},
)
SEES = {"torch": "2.11.0", "cuda": "13.0", "devices": 1, "gpu": "NVIDIA H200", "capability": "90", "memory_bytes": 1}


def report(tests=0, failures=0, errors=0, skipped=0):
    return f'<testsuites><testsuite tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"/></testsuites>'


class Runs:
    """Notes commands in place of running them, and leaves behind what they would write."""

    def __init__(self, code=0, junit=None, out=None, codes=None):
        self.commands, self._code, self._junit, self._out, self._codes = [], code, junit, out, codes or {}

    def __call__(self, command, limit_s, env):
        self.commands.append((list(command), env))
        assert limit_s <= 480
        for argument in command:
            if argument.startswith("--junitxml=") and self._junit is not None:
                Path(argument.partition("=")[2]).write_text(self._junit)
        if "benchmarks.gpu" in command and self._out is not None:
            Path(command[command.index("--out") + 1]).write_text(json.dumps(self._out))
        return next((code for word, code in self._codes.items() if word in command), self._code)


def test_what_is_missing_is_named_with_what_to_do():
    machine, complaints = look(
        ["lightning", "psutil"], lambda: SEES, lambda name: None if name == "nvcc" else f"/bin/{name}"
    )
    assert machine is None
    assert [c.partition(":")[0] for c in complaints] == ["lightning", "psutil", "nvcc"]
    assert all(len(c.splitlines()) == 1 for c in complaints)


@pytest.mark.parametrize(
    ("sees", "said"),
    [
        ({"torch": "2.11.0+cpu", "cuda": None, "devices": 0}, "built without CUDA: sees no CUDA device"),
        ({"torch": "2.11.0", "cuda": "13.0", "devices": 0}, "built for CUDA 13.0: sees no CUDA device"),
        ({"error": "OSError: libcudart"}, "OSError: libcudart"),
    ],
)
def test_a_torch_without_a_device_is_refused(sees, said):
    machine, (complaint,) = look([], lambda: sees, lambda name: name)
    assert machine is None
    assert said in complaint


def test_torch_that_is_missing_is_not_asked():
    _, complaints = look(["torch"], lambda: pytest.fail("asked"), lambda name: name)
    assert len(complaints) == 1


def test_a_machine_with_everything():
    machine, complaints = look([], lambda: SEES, lambda name: None if name == "compute-sanitizer" else name)
    assert not complaints
    assert (machine.gpu, machine.capability, machine.sanitizer) == ("NVIDIA H200", "90", None)
    assert machine.versions["torch"] == "2.11.0"
    assert machine.versions["driver"] == gpu_machine.UNKNOWN or machine.versions["driver"]


def test_packages_are_looked_for():
    assert gpu_machine.missing_packages(lambda name: name != "psutil") == ["psutil"]


def test_the_command_says_why_it_cannot_run(capsys, monkeypatch):
    monkeypatch.setattr(gpu_check, "look", lambda: (None, ["nvcc: not found."]))
    assert gpu_check.main([]) == 1
    assert "nvcc: not found." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("junit", "code", "ok", "said"),
    [
        (report(tests=5), 0, True, "5 passed"),
        (report(tests=5, skipped=1), 0, False, "4 passed, 1 skipped"),
        (report(tests=5, failures=1, errors=1), 1, False, "3 passed, 1 failures, 1 errors"),
        (report(), 5, False, "no tests were found"),
        (report(tests=5), 3, False, "5 passed, exit code 3"),
    ],
)
def test_a_skip_is_a_failure_and_so_is_nothing(junit, code, ok, said):
    assert verdict(junit, code) == (ok, said)


def test_all_is_well(tmp_path):
    runs = Runs(junit=report(tests=3), out={"rows": [{"what": "x", "reached": True}], "markdown": "| x |"})
    check = Check(MACHINE, scale=0.5, runs=runs, build=tmp_path)
    parts = check.all()
    assert [p.name for p in parts] == list(gpu_check.LIMITS_S)
    assert all(p.ok for p in parts)
    commands = [command for command, _ in runs.commands]
    assert "-DGLT_CUDA_ARCHITECTURES=90-real" in commands[0]
    assert commands[1][:2] == ["cmake", "--build"]
    assert commands[3][:3] == ["/cuda/san", "--tool", "memcheck"]
    assert commands[4][:3] == ["/cuda/san", "--tool", "racecheck"]
    assert commands[5][-4:-1] == ["--scale", "0.5", "--out"]
    assert all(env["GLT_KERNELS_DIR"] == str(tmp_path) for _, env in runs.commands[2:])


def test_packages_from_elsewhere_stay_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/a:/b")
    runs = Runs(junit=report(tests=1))
    Check(MACHINE, runs=runs, build=tmp_path).tests()
    assert runs.commands[0][1]["PYTHONPATH"] == f"{ROOT / 'src'}:{ROOT}:/a:/b"


def test_what_torch_asks_in_vain_is_no_error_of_memcheck(tmp_path):
    runs = Runs(junit=report(tests=1))
    check = Check(MACHINE, runs=runs, build=tmp_path)
    for tool in ("memcheck", "racecheck"):
        assert check.sanitize(tool)[0]
    options = [" ".join(command) for command, _ in runs.commands]
    assert ["--report-api-errors no" in each for each in options] == [True, False]


def test_without_kernels_nothing_else_passes(tmp_path):
    runs = Runs(code=2)
    parts = Check(MACHINE, runs=runs, build=tmp_path).all()
    assert len(runs.commands) == 1
    assert not any(p.ok for p in parts)
    assert parts[0].said == "exit code 2; see above"


@pytest.mark.parametrize(("code", "said"), [(86, "it found errors; see above"), (None, "ended after 50 s")])
def test_the_others_run_though_one_fails(tmp_path, code, said):
    runs = Runs(junit=report(3), out={"rows": [{"what": "x", "reached": True}]}, codes={"memcheck": code})
    parts = {p.name: p for p in Check(MACHINE, runs=runs, build=tmp_path).all()}
    failed = parts.pop("memcheck")
    assert (failed.ok, failed.said) == (False, said)
    assert all(p.ok for p in parts.values())


def test_what_is_left_of_an_earlier_run_does_not_count(tmp_path):
    check = Check(MACHINE, runs=Runs(junit=report(3), out={"rows": [{"what": "x"}]}), build=tmp_path)
    assert check.tests()[0]
    assert check.benchmark()[0]
    late = Check(MACHINE, runs=Runs(code=None), build=tmp_path)
    assert late.tests() == (False, "ended after 160 s")
    assert late.benchmark() == (False, "ended after 105 s")


def test_a_target_that_is_missed_is_named(tmp_path):
    out = {"rows": [{"what": "gather", "reached": False}, {"what": "sampling", "reached": True}]}
    ok, said = Check(MACHINE, runs=Runs(out=out), build=tmp_path).benchmark()
    assert not ok
    assert said == "2 measures; not reached: gather"


def test_no_measure_is_a_failure(tmp_path):
    assert Check(MACHINE, runs=Runs(out={"rows": []}), build=tmp_path).benchmark()[0] is False


def test_without_the_sanitizer_it_says_so(tmp_path):
    machine = Machine(**{**vars(MACHINE), "sanitizer": None})
    ok, said = Check(machine, runs=Runs(), build=tmp_path).sanitize("memcheck")
    assert ok
    assert said == "not run: compute-sanitizer is not on the PATH"


def test_what_runs_too_long_is_ended_with_its_children(tmp_path):
    child = tmp_path / "child"
    assert gpu_check.run(["sh", "-c", f"sleep 60 & echo $! > {child}; wait"], 1.0, {}) is None
    pid = int(child.read_text())
    settle(lambda: [pid] if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" else [], 10)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


def test_exit_codes_and_environment_arrive():
    command = [sys.executable, "-c", "import os; raise SystemExit(int(os.environ['CODE']))"]
    assert gpu_check.run(command, 60, {"CODE": "7"}) == 7


def test_the_parts_fit_into_eight_minutes():
    assert sum(gpu_check.LIMITS_S.values()) <= 470


def test_results_have_the_device_the_versions_and_the_parts(tmp_path):
    parts = [Part("tests", False, "4 passed, 1 skipped", 3.2)]
    path = write_results(tmp_path, MACHINE, parts, {"markdown": "| measures |", "rows": []})
    assert path.name == "NVIDIA-H200-fake.md"
    text = path.read_text()
    assert "| tests | FAILED | 4 passed, 1 skipped | 3 |" in text
    assert "| measures |" in text
    found = json.loads(path.with_suffix(".json").read_text())
    assert found["versions"] == {"a": "1"}
    assert found["parts"][0]["ok"] is False
    assert table(parts) in text


@pytest.mark.slow
def test_every_test_for_a_gpu_is_collected_with_few_packages():
    """The files are imported on a machine that lacks what they do not need; and the sanitizer's cases are there."""
    absent = ("ogb", "pymetis", "jsonargparse", "cryptography", "hypothesis", "ruff", "mypy")
    code = (
        "import sys, importlib.machinery as m, pytest\n"
        f"absent, real = {absent!r}, m.PathFinder.find_spec\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        return None if name.partition('.')[0] in absent else real(name, path, target)\n"
        "sys.meta_path[:] = [Finder if f is m.PathFinder else f for f in sys.meta_path]\n"
        "sys.exit(pytest.main(sys.argv[1:]))\n"
    )
    files = gpu_test_files()
    assert "tests/gpu/test_ops.py" in files
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-m", "gpu"]
    command = [sys.executable, "-c", code, *options, *files]
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert set(gpu_check.SANITIZED) <= set(done.stdout.splitlines())
