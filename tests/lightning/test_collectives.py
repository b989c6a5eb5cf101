"""What ranks tell each other, over a real process group of two."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import glt_lightning
from glt_lightning.tensors.dist_ranks import gather_text
from tests.helpers import run_script

SCRIPT = """
import json, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from glt_lightning.base import PeerError
import glt_lightning
from glt_lightning.tensors.dist_ranks import gather_counts, gather_text

CPU = torch.device("cpu")

def rank(number, store, texts):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    seen = [gather_text(pair[number], 2, CPU) for pair in texts]
    counts = gather_counts(10 + number, 2, CPU)
    try:
        gather_text("x" * ((1 << 20) + 1) if number else "", 2, CPU)
        refused = ""
    except PeerError as error:
        refused = str(error)
    with open(f"rank{number}.json", "w") as out:
        json.dump([seen, counts, refused], out)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(rank, (sys.argv[1], json.loads(sys.argv[2])), nprocs=2)
"""
TEXTS = [["a", "bcd"], ["", ""], ["", "x"], ["süß", "\x00"], ["long" * 5000, "{}"]]


@pytest.mark.slow
def test_every_rank_gets_all_texts(tmp_path: Path) -> None:
    run_script(SCRIPT, tmp_path / "store", json.dumps(TEXTS), cwd=tmp_path)
    for rank in range(2):
        seen, counts, refused = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert seen == TEXTS
        assert counts == [10, 11]
        assert refused == "received a message of 1048577 bytes from a rank; at most 1048576 are allowed."


@pytest.mark.parametrize("text", ["", "alone"])
def test_one_rank_needs_no_process_group(text: str) -> None:
    assert gather_text(text, 1, torch.device("cpu")) == [text]


def test_nothing_of_ours_is_pickled_between_ranks() -> None:
    """Objects go through pickle in these calls; text and numbers do not."""
    calls = re.compile(r"\.broadcast\(|(broadcast|gather|scatter)_object(_list)?\(|(send|recv)_object_list\(")
    files = sorted(Path(glt_lightning.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    assert [file.name for file in files if calls.search(file.read_text())] == []
