"""A mistake with rows ends all ranks with one line, which names the rank that alone made it, and nobody hangs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers import started
from tests.helpers.partitions import small_graph

ROOT = Path(__file__).parents[2]
SAID = {
    "id": "rank 1: rows: 1000000000 at position 1 is no row of the nodes of type 'node', which has the rows 0 to 299.",
    "no rows": "rank 1: DistEmbedding: the batch has no row numbers. Set data.batches.with_row: true",
    "shape": "rank 1: tensor 'memory': expected values [2, 2], or of one row; got [2, 5].",
    "attribute": "rank 1: tensor 'x' of 'node': the partition stores it, so it cannot be written. Create a",
    "size": "rank 1: tensor 'memory': of: no type has 301 rows ('node': 300, 'node__to__node': 2400). Give of=",
    "width": "tensors: the ranks create different tensors: rank 0: 'memory' of node, float32 rows [2], zeros; rank 1: 'me",
    "name": "tensor 'memory' of node, int64 rows [2], zeros: the name is taken by 'memory' of node, float32 rows [2], zer",
    "clip": "trainer.gradient_clip_algorithm: value: the values of rows are on other ranks. Use norm, or clip_value of",
}
CLIP = ["--trainer.gradient_clip_val", "1.0", "--trainer.gradient_clip_algorithm", "value"]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", SAID)
def test_is_one_line(tmp_path, mistake):
    """In the log of a host, whichever of its two ranks make it."""
    torch.save(small_graph(), tmp_path / "graph.pt")
    options = ["--model", "tests.tensors.mistaken.Mistaken", "--model.mistake", mistake, "--data", "GLTDataModule"]
    options += ["--data.dataset", "graph.pt", "--data.num_neighbors", "[3]", "--data.batch_size", "8"]
    options += ["--trainer.devices", "2", "--trainer.strategy", "glt_worker", "--trainer.accelerator", "cpu"]
    options += ["--trainer.num_sanity_val_steps", "0", "--trainer.enable_progress_bar", "false"]
    command = [sys.executable, "-m", "glt_lightning", "fit", *options, *(CLIP if mistake == "clip" else [])]
    with started(command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}) as run:
        assert run.wait(120) != 0
        assert "Traceback" not in run.output, run.output
        errors = [line for line in run.output.splitlines() if "rror: " in line]
    assert len(errors) == 1, errors
    assert errors[0].startswith(f"error: {SAID[mistake]}")


PROGRAM = """
import traceback
from glt_lightning import GLTDataModule
from lightning.pytorch import Trainer
from tests.tensors.mistaken import Mistaken
from tests.tensors.twins import QUIET

trainer = Trainer(**QUIET, devices=2, strategy="glt_worker", num_sanity_val_steps=0, enable_checkpointing=False)
try:
    trainer.fit(Mistaken("id"), GLTDataModule("graph.pt", num_neighbors=[3], batch_size=8))
except Exception as error:
    lines = [line for line in "".join(traceback.format_exception(error)).splitlines() if "rows: 1000000000" in line]
    print(f"raised on {trainer.global_rank}: {lines}", flush=True)
"""


@pytest.mark.slow
def test_every_rank_of_a_program_raises(tmp_path):
    """The rank itself its error; the other one what it waited for, because of that rank and its error."""
    torch.save(small_graph(), tmp_path / "graph.pt")
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with started([sys.executable, "program.py"], cwd=tmp_path, env=env) as run:
        run.wait(120)
        raised = dict(re.findall(r"raised on (\d): \[['\"](.*)['\"]\]", run.output))
        assert raised.keys() == {"0", "1"}, run.output
    text = "rows: 1000000000 at position 1 is no row of the nodes of type 'node', which has the rows 0 to 299."
    assert raised["1"] == f"glt_lightning.base.errors.DataError: {text}"
    assert re.search(
        rf"RankError: rank 1 \(process \d+\) of this host failed \(DataError: {re.escape(text)}\)", raised["0"]
    )
