"""The examples and the page about one's own module run as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from glt_lightning.cli import main
from glt_lightning.lightning import read_predictions
from tests.helpers import started
from tests.lightning.tiny import NODES

ROOT = Path(__file__).parents[2]
LINKS = "train_embeddings.py --task link --devices 2"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [*sorted(p.name for p in (ROOT / "examples").glob("*.py") if p.name[:10] != "partition_"), LINKS]
)
def test_example_runs(script: str, tmp_path: Path) -> None:
    name, *options = script.split()
    command = [sys.executable, ROOT / "examples" / name, "--max-epochs", "2", *options]
    if script == "sweep_with_optuna.py":
        pytest.importorskip("optuna")
        command += ["--trials", "3"]
    with started(command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}) as run:
        assert run.wait(200) == 0, run.output
        if name == "train_embeddings.py":  # one in ten nodes is right by chance, one in two pairs
            least = 0.6 if "link" in options else 0.2
            assert float(re.findall(r"test_acc\D+(\d\.\d+)", run.output)[0]) > least
        if "link" in options:
            (accuracy,) = re.findall(r"classifier of the learned vectors: (\d\.\d+)", run.output)
            assert float(accuracy) > 0.25


def _module_of_the_page() -> str:
    page = (ROOT / "docs/lightning.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "class NodeClassifier" in block]
    return code


@pytest.mark.parametrize("home", [pytest.param("my_module", marks=pytest.mark.slow), "own_module"])
def test_own_module_from_fit_to_predictions(
    home: str, graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the page says: the file in the current folder, and its class named on the command line."""
    code = _module_of_the_page() if home == "my_module" else (ROOT / "examples/own_module.py").read_text()
    (tmp_path / f"{home}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    quiet = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.enable_progress_bar=false"]
    data = ["--data=GLTDataModule", f"--data.dataset={graph_npz}", "--data.num_neighbors=[5,5]", "--data.batch_size=20"]
    own = [f"--model={home}.NodeClassifier", *data, *quiet]
    main(["fit", *own, "--trainer.max_epochs=5"])
    assert yaml.safe_load(Path("lightning_logs/version_0/hparams.yaml").read_text()).keys() == {
        "_instantiator",
        "hidden_channels",
        "in_channels",
        "lr",
        "out_channels",
    }
    capsys.readouterr()
    main(["test", *own, "--ckpt_path=best"])
    (accuracy,) = re.findall(r"test_acc\W+([\d.]+)", capsys.readouterr().out)
    assert float(accuracy) > 0.5
    main(["predict", *own, "--ckpt_path=best"])
    (written,) = Path("lightning_logs").glob("*/predictions")
    assert read_predictions(written)["n_id"].tolist() == list(range(NODES))
