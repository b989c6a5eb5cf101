"""The job that tests over several hosts run, and its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

LIMIT_S = 500.0  # on cores that others use, too
ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}


def config(epochs: int = 2, **cluster: Any) -> dict[str, Any]:
    return {
        "seed_everything": 3,
        "trainer": {
            "accelerator": "cpu",
            "max_epochs": epochs,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        },
        "model": {"class_path": "glt_lightning.GraphSAGE", "init_args": {"num_layers": 2, "dropout": 0.0}},
        "data": {
            "class_path": "glt_lightning.GLTDataModule",
            "init_args": {"num_neighbors": [5, 5], "batch_size": 64, "partition": {"dir": "part"}},
        },
        "cluster": cluster,
    }


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.rglob("last*.ckpt")
    return torch.load(path, weights_only=True)["state_dict"]


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
