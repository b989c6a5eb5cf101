from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.ptx.build import ARCHITECTURE, build
from tests.ptx.device import PtxDevice

_report = pytest.StashKey[dict[str, tuple[int, int]]]()


@pytest.fixture(scope="session")
def device(tmp_path_factory) -> PtxDevice:
    return PtxDevice(build(tmp_path_factory.mktemp("ptx")))


@pytest.fixture(scope="session")
def launched(pytestconfig) -> dict[str, tuple[int, int]]:
    """Launches and cases by kernel, for the table at the end."""
    return pytestconfig.stash.setdefault(_report, {})


def pytest_terminal_summary(terminalreporter, config) -> None:
    launched = config.stash.get(_report, {})
    if not launched:
        return
    terminalreporter.section(f"kernels from PTX of compute_{ARCHITECTURE}")
    terminalreporter.write_line(f"{'launches':>10} {'cases':>6}  kernel")
    names = list(launched)
    for name, (launches, cases) in zip(readable(names), launched.values(), strict=True):
        terminalreporter.write_line(f"{launches:>10,} {cases:>6,}  {name}")


def readable(names: list[str]) -> list[str]:
    """``KHopPick<int, DirectLids, 8>`` of a mangled name, where there is a c++filt."""
    if shutil.which("c++filt") is None:
        return names
    lines = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True, timeout=60)
    short = [re.sub(r"(glt|_GLOBAL__N__\w+|\(anonymous namespace\))::", "", line) for line in lines.stdout.splitlines()]
    return [re.sub(r"^void |\(.*\)$", "", line) for line in short]
