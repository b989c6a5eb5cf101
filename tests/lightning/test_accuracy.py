"""Configs alone reach the accuracy of full-batch training. The data sets lie in the folder ``GLT_TEST_DATA``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from statistics import fmean

import pytest

from tests.helpers import run_cli

CONFIGS = Path(__file__).parents[2] / "configs"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

# what full-batch GraphSAGE reaches, less a point and a half
LEAST = {"cora": 0.781, "amazon_computers": 0.896, "facebook_pages": 0.914, "wordnet": 0.52, "dblp_hetero": 0.927}

# Seeds whose mean is compared, where one seed may lie on either side of the bound: dblp_hetero gave 0.924, 0.926, 0.929, 0.932
# and 0.933 for seeds 0 to 4, a mean of 0.929. The other data sets are far enough from their bounds.
SEEDS = {"dblp_hetero": 5}


def fit_and_test(cwd: Path, *options: object) -> float:
    quiet = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
    run_cli("fit", *options, *quiet, cwd=cwd, env=ONE_THREAD, timeout=1200)
    said = run_cli("test", *options, *quiet, "--ckpt_path", "best", cwd=cwd, env=ONE_THREAD, timeout=300).stdout
    accuracy = re.findall(r"test_acc\D+(\d\.\d+)", said)[0]  # of the table; the last line names it, too
    return float(accuracy)


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    assert fit_and_test(tmp_path, "--config", CONFIGS / "demo.yaml") >= 0.75


@pytest.mark.soak
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("name", LEAST)
def test_reference(name: str, tmp_path: Path) -> None:
    file = Path(os.environ.get("GLT_TEST_DATA", "data"), f"{name}.npz").resolve()
    if not file.exists():
        pytest.skip(f"{file} is not here; set GLT_TEST_DATA to the folder of the reference data sets")
    config = CONFIGS / "reference" / f"{name}.yaml"
    options = ["--config", config, "--data.dataset", file, "--data.root", tmp_path / "root"]
    reached = []
    for seed in range(SEEDS.get(name, 1)):
        folder = tmp_path / str(seed)  # where `best` finds the checkpoint of this seed alone
        folder.mkdir()
        reached.append(fit_and_test(folder, *options, *(["--seed_everything", seed] if name in SEEDS else [])))
    assert fmean(reached) >= LEAST[name], reached
