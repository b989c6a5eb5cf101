"""A mistake of one rank with rows ends all ranks with one line that names the rank, and nobody hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.helpers import started
from tests.helpers.partitions import small_graph

ROOT = Path(__file__).parents[2]
SAID = {
    "id": "rows: 1000000000 at position 1 is no row of the nodes of type 'node', which has the rows 0 to 299.",
    "no rows": "DistEmbedding: the batch has no row numbers. Set data.with_row: true",
    "shape": "tensor 'memory': expected values [2, 2], or of one row; got [2, 5].",
}


def lines_of(folder: Path, mistake: str, *more: str) -> list[str]:
    torch.save(small_graph(), folder / "graph.pt")
    options = ["--model", "tests.embedding.mistaken.Mistaken", "--model.mistake", mistake, "--data", "GLTDataModule"]
    options += ["--data.dataset", "graph.pt", "--data.num_neighbors", "[3]", "--data.batch_size", "8"]
    options += ["--trainer.devices", "2", "--trainer.strategy", "glt_worker", "--trainer.accelerator", "cpu"]
    options += ["--trainer.num_sanity_val_steps", "0", "--trainer.enable_progress_bar", "false", *more]
    command = [sys.executable, "-m", "glt_lightning", "fit", *options]
    with started(command, cwd=folder, env={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}) as run:
        assert run.wait(120) != 0
        assert "Traceback" not in run.output, run.output
        return run.output.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("mistake", SAID)
def test_of_one_rank_alone(tmp_path, mistake):
    errors = [line for line in lines_of(tmp_path, mistake) if "rror: " in line]
    assert len(errors) == 1, errors
    assert errors[0].startswith(f"error: rank 1: {SAID[mistake]}")


@pytest.mark.slow
def test_clip_by_value(tmp_path):
    clip = ["--trainer.gradient_clip_val", "1.0", "--trainer.gradient_clip_algorithm", "value"]
    lines = lines_of(tmp_path, "none", *clip)
    said = [line for line in lines if "gradient_clip_algorithm: value: the values of rows are on other ranks" in line]
    assert 1 <= len(said) <= 2, lines
