"""A script that does not destroy torch's process group ends well all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, weakref, torch
from glt_lightning.tensors.dist_ranks import ranks_of_this_process
weakref.finalize(torch, lambda: print("a group is left:", torch.distributed.is_initialized()))  # later than ours
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
ranks_of_this_process()
weakref.finalize(torch, lambda: print("graphs have the group:", torch.distributed.is_initialized()))
if len(sys.argv) > 2:
    raise ValueError
"""


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_group_ends_with_the_script(tmp_path: Path, fails: bool) -> None:
    """After an error it is left alone: what is under way in it would be waited for."""
    argv = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), *(["fails"] if fails else [])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.splitlines() == ["graphs have the group: True", f"a group is left: {fails}"], done.stderr
    assert fails or done.returncode == 0
