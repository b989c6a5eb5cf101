"""From two Parquet tables with text ids to a trained model, with one YAML file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from glt_lightning import read_embeddings
from glt_lightning.cli import main
from glt_lightning.lightning import read_predictions
from glt_lightning.partition import open_source, user_ids
from tests.helpers import started

EXAMPLE = Path(__file__).parents[2] / "examples" / "tables"


@pytest.mark.slow
def test_example_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with started([sys.executable, EXAMPLE / "write_tables.py"], cwd=tmp_path) as run:
        assert run.wait(60) == 0, run.output
    config = EXAMPLE / "config.yaml"
    given = ["--config", str(config), "--trainer.enable_progress_bar", "false"]
    main(["fit", *given, "--trainer.max_epochs", "4"])
    main(["test", *given, "--ckpt_path", "best"])
    found = re.search(r"test_acc\D+([\d.]+)", capfd.readouterr().out)
    assert found is not None
    assert float(found.group(1)) > 0.6  # of four classes
    assert len(list((tmp_path / "data" / "tables").iterdir())) == 1

    main(["predict", *given, "--ckpt_path", "best"])
    (folder,) = tmp_path.rglob("predictions")
    predictions = read_predictions(folder)
    papers = pq.read_table(tmp_path / "data" / "library" / "papers.parquet").to_pydict()
    field = dict(zip(papers["paper_id"], papers["field"], strict=True))
    dataset = yaml.safe_load(config.read_text())["data"]["init_args"]["dataset"]
    source = open_source(dataset, "data")
    ids = user_ids(source.folder, predictions["n_id"])  # type: ignore[attr-defined]
    assert sorted(ids) == sorted(field)
    assert predictions["id"].tolist() == ids.tolist()
    assert pq.read_schema(folder / "rank0.parquet").names[:4] == ["n_id", "id", "pred", "class"]
    assert predictions["embedding"].shape == (len(field), 64)
    right = sum(field[paper] == name for paper, name in zip(ids, predictions["class"], strict=True))
    assert right / len(ids) > 0.6

    main(["embed", *given, "--ckpt_path", "best", "--out", "emb", "--layerwise.batch_size", "500"])
    exact = read_embeddings("emb")
    assert exact["id"].tolist() == predictions["id"].tolist()
    assert exact["embedding"].shape == (len(field), 64)
    assert np.mean(exact["class"] == predictions["class"]) > 0.8  # those are of sampled neighbours
    assert pq.read_table("emb").num_rows == len(field)
