"""ShaDow, SEAL and PinSAGE's neighbours by YAML alone on real graphs, in the folder ``GLT_TEST_DATA``."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers import run_cli

CONFIGS = Path(__file__).parents[2] / "configs" / "reference"
PLAIN = [
    "--data.batches.disjoint",
    "false",
    "--data.links.tree",
    "end",
    "--data.batches.subgraph_type",
    "directional",
    "--data.batches.transform",
    "null",
]


def run_of(name: str, graph: str, folder: Path, *more: object) -> str:
    """What ``test`` prints after ``fit``."""
    file = Path(os.environ.get("GLT_TEST_DATA", "data"), f"{graph}.npz").resolve()
    if not file.exists():
        pytest.skip(f"{file} is not here; set GLT_TEST_DATA to the folder of the reference data sets")
    folder.mkdir()
    options = [
        "--config",
        CONFIGS / f"{name}.yaml",
        "--data.dataset",
        file,
        "--data.root",
        folder.parent / "root",
        *more,
    ]
    options += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
    run_cli("fit", *options, cwd=folder, env={"OMP_NUM_THREADS": "1"}, timeout=600)
    return run_cli(
        "test", *options, "--ckpt_path", "best", cwd=folder, env={"OMP_NUM_THREADS": "1"}, timeout=300
    ).stdout


def metric(name: str, said: str) -> float:
    return float(re.findall(rf"{name}\D+(\d\.\d+)", said)[0])


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_seal_tells_edges_better_than_the_plain_encoder(tmp_path: Path) -> None:
    seal = metric("test_auc", run_of("cora_seal", "cora", tmp_path / "seal"))
    plain = metric("test_auc", run_of("cora_seal", "cora", tmp_path / "plain", *PLAIN))
    assert seal >= 0.9
    assert plain < seal - 0.05


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_shadow_learns_wordnet(tmp_path: Path) -> None:
    """Full-batch GraphSAGE reaches 0.528."""
    assert metric("test_acc", run_of("wordnet_shadow", "wordnet", tmp_path / "shadow")) >= 0.53


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_neighbours_by_walks_learn_cora(tmp_path: Path) -> None:
    """Full-batch GraphSAGE reaches 0.796, a model that sees no edges 0.596. Two parts, one sampler process."""
    assert metric("test_acc", run_of("cora_pinsage", "cora", tmp_path / "pinsage")) >= 0.77
