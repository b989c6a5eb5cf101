"""The leak police of conftest catches what is planted, names it, and cleans it up; the runner lets nothing pass."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers import run_script, started

ROOT = Path(__file__).parents[1]

PLANTED = """
import ctypes, gc, os, subprocess, sys, threading, time
import pytest

kept = []

def test_clean(): pass

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

def test_orphan():
    # its parent is gone, and it leads a session of its own
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    code = f"import subprocess, sys; subprocess.Popen({child}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_fork():
    if (pid := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)

def test_thread():
    go = threading.Event()
    threading.Thread(target=go.wait, args=(3,), name="waiting").start()

def test_our_daemon_thread():
    threading.Thread(target=threading.Event().wait, args=(60,), name="glt-ring", daemon=True).start()

def test_foreign_daemon_thread():
    threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()

def test_shared_memory():
    open(f"/dev/shm/planted-{os.getpid()}", "w").close()

def test_memfd():
    kept.append(os.memfd_create("glt-planted"))

def test_memfd_in_a_cycle():
    class Slot:
        def __init__(self): self.fd, self.me = os.memfd_create("glt-planted"), self
        def __del__(self): os.close(self.fd)
    Slot()

def test_variable():
    os.environ["GLT_PLANTED"] = "1"

def test_variable_is_gone():
    assert "GLT_PLANTED" not in os.environ

def test_variable_of_lightning():
    os.environ["LOCAL_RANK"] = "1"

def test_variable_of_lightning_is_gone():
    assert "LOCAL_RANK" not in os.environ

def test_fails_by_itself():
    kept.append(os.memfd_create("glt-planted"))
    assert False

def test_thread_that_raises():
    def work(): raise RuntimeError("in a thread")
    thread = threading.Thread(target=work); thread.start(); thread.join()
"""

CAUGHT = {
    "child": "process",
    "orphan": "process",
    "fork": "process",
    "thread": "thread 'waiting'",
    "our_daemon_thread": "thread 'glt-ring'",
    "shared_memory": "/dev/shm/planted-",
    "memfd": "memfds: 0 before, 1 after",
    "variable": "environment variable GLT_PLANTED='1'",
}
# their own failures, not the police's
FAILED = {"fails_by_itself", "thread_that_raises"}


def test_police_catches_what_is_planted(tmp_path: Path) -> None:
    file = tmp_path / "test_planted.py"
    file.write_text(PLANTED)
    pytest_args = ["-m", "pytest", "-p", "tests.helpers.leaks", "-c", ROOT / "pyproject.toml", "-rA", file]
    with started(
        [sys.executable, *pytest_args], env={"PYTHONPATH": str(ROOT), "COLUMNS": "500", "GLT_TEST_GRACE_S": "0.5"}
    ) as run:
        status = run.wait(120)
        survivors = run.family()
        output = run.output
    for leak in Path("/dev/shm").glob(f"planted-{run.popen.pid}"):
        leak.unlink()

    errors = {line.split("::test_")[1].split(" ")[0]: line for line in output.splitlines() if line.startswith("ERROR ")}
    failures = {line.split("::test_")[1].split(" ")[0] for line in output.splitlines() if line.startswith("FAILED ")}
    assert errors.keys() == CAUGHT.keys(), output
    for name, said in CAUGHT.items():
        assert said in errors[name]
    assert failures == FAILED, output
    assert status == 1
    assert not survivors


def test_runner_fails_when_the_program_fails() -> None:
    with pytest.raises(AssertionError, match=r"(?s)ended with status 3.*last words"):
        run_script("print('last words'); raise SystemExit(3)")
    assert run_script("raise SystemExit(3)", check=False).returncode == 3


def test_runner_ends_everything_on_timeout() -> None:
    code = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        print(child.pid)
        time.sleep(60)
    """
    with pytest.raises(AssertionError, match="did not end within 2 s") as error:
        run_script(code, timeout=2)
    child = int(str(error.value).split("Output:\n")[1])
    assert not psutil.pid_exists(child)


def test_runner_fails_when_a_process_is_left_behind() -> None:
    code = """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    """
    with pytest.raises(AssertionError, match=r"(?s)left behind:.*time\.sleep\(60\)"):
        run_script(code)


def test_runner_hides_the_surrounding_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    code = "import os; print([n for n in os.environ if n == 'LOCAL_RANK' or n.startswith('SLURM_')])"
    result = run_script(code)
    assert isinstance(result, subprocess.CompletedProcess)
    assert result.stdout.strip() == "[]"
