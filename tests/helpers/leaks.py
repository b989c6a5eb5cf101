"""The leak police, a pytest plugin: a test that leaves something behind fails, and the next test starts clean.

Looked at: processes, threads, names in /dev/shm, our memfds, environment variables. What is still on its way out gets
`GRACE_S` seconds.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers.family import MARK, children, describe, end, marked, settle

GRACE_S = float(os.environ.get("GLT_TEST_GRACE_S", "5"))

# Lightning and torch write these into os.environ when they are imported, or a Trainer runs in the test's own process.
SET_BY_LIBRARIES = {"LOCAL_RANK", "NODE_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
SET_BY_LIBRARIES |= {"PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER"}
SET_BY_LIBRARIES |= {"CUDA_MODULE_LOADING"}  # by a torch that finds a GPU
SET_BY_LIBRARIES |= {
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "KMP_INIT_AT_FORK",
    "KMP_DUPLICATE_LIB_OK",
    "TORCHINDUCTOR_CACHE_DIR",
}
SET_BY_PYTEST = {"PYTEST_CURRENT_TEST"}

_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(scope="session", autouse=True)
def _family_mark() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Below the mark of a surrounding run, so that who started this pytest finds our processes as well.
        patch.setenv(MARK, f"{os.environ.get(MARK, '')}{os.getpid()}.")
        # A shell starts what runs in its background with SIGINT ignored, which every child would inherit.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


@pytest.fixture(autouse=True)
def leak_police(_family_mark: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up before and torn down after a test's other fixtures; what wider fixtures hold counts as there before."""
    env, interrupt = dict(os.environ), signal.getsignal(signal.SIGINT)
    pids = set(psutil.pids())
    before = {kind: set(found()) for kind, found in _KINDS.items()}
    memfds = count_memfds()
    yield
    _end_process_group()
    # Lightning leaves SIGINT ignored after a fit that was interrupted, and every child would inherit that.
    signal.signal(signal.SIGINT, interrupt)
    leaks = _restore_env(env)
    for kind, found in _KINDS.items():
        leaks += settle(lambda found=found, kind=kind: [x for x in found() if _is_leak(x, before[kind])], GRACE_S)
    leaks += settle(lambda: _new_processes(pids), GRACE_S)
    processes = [leak for leak in leaks if isinstance(leak, psutil.Process)]
    said = [_say(leak) for leak in leaks]
    end(processes)
    if count_memfds() > memfds:
        gc.collect()  # a batch in a reference cycle still holds its slot
        if settle(lambda: [True] if count_memfds() > memfds else [], GRACE_S):
            said.append(f"memfds: {memfds} before, {count_memfds()} after")
    # The traceback of a failed test keeps its locals alive, and its own error is the one to read.
    if said and not request.node.stash.get(_failed, False):
        pytest.fail("left behind: " + "; ".join(said), pytrace=False)


def _new_processes(before: set[int]) -> list[psutil.Process]:
    """Those of ours with other process ids than there were before. Without a new one, none is looked at: that takes 5 ms."""
    if set(psutil.pids()) <= before:
        return []
    return [process for process in _processes() if process.pid not in before]


def _processes() -> list[psutil.Process]:
    return list({*children(), *marked(os.environ[MARK])})


def _threads() -> list[threading.Thread]:
    """Threads that keep the interpreter alive, and all of ours."""
    return [t for t in threading.enumerate() if t is not threading.current_thread() and (not t.daemon or _is_ours(t))]


def _is_ours(thread: threading.Thread) -> bool:
    # `_target` tells whose code a plain Thread runs; a thread that is just ending has none any more.
    modules = (type(thread).__module__, getattr(getattr(thread, "_target", None), "__module__", None) or "")
    return thread.name.startswith("glt") or any(module.split(".")[0] == "glt_lightning" for module in modules)


def shared_memory() -> list[Path]:
    return list(Path("/dev/shm").iterdir())


def new_shared_memory(before: list[Path]) -> list[Path]:
    """Names that were not there before, and do not belong to another job on this machine."""
    return [path for path in shared_memory() if _is_leak(path, set(before))]


def _is_leak(thing: object, before: set) -> bool:
    return thing not in before and not (isinstance(thing, Path) and _mapped_by_others(thing))


def _mapped_by_others(path: Path) -> bool:
    """Whether a name in /dev/shm belongs to another job on this machine."""
    ours = {os.getpid(), *(process.pid for process in _processes())}
    users = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(path) in maps.read_text(errors="replace"):
                users.add(int(maps.parent.name))
        except OSError:  # ended meanwhile
            continue
    return bool(users) and not users & ours


_KINDS = {"threads": _threads, "shared memory": shared_memory}


def count_memfds() -> int:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # the descriptor of the listing itself
            continue
    return sum(link.startswith("/memfd:glt") for link in links)


def _restore_env(before: dict[str, str]) -> list[str]:
    """Puts the environment back; returns the changes that neither a library nor pytest makes by itself."""
    after = dict(os.environ)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - SET_BY_PYTEST
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    return [f"environment variable {name}={after.get(name)!r}" for name in sorted(changed - SET_BY_LIBRARIES)]


def _end_process_group() -> None:
    """Lightning leaves torch's default group up until the process ends; the next test would find it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _say(leak: object) -> str:
    if isinstance(leak, psutil.Process):
        return describe(leak)
    return f"thread {leak.name!r}" if isinstance(leak, threading.Thread) else str(leak)
