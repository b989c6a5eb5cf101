"""Nearest neighbours are those of a search through all rows; without faiss an error says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import DataError, OptionError
from glt_lightning.cli import main
from glt_lightning.inference import nearest
from glt_lightning.lightning.callbacks.prediction_files import MANIFEST, PredictionFile, file_name, manifest_text

ROWS = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)


@pytest.fixture
def written(tmp_path: Path) -> str:
    ids = np.array([f"p{n}" for n in range(300)], dtype=object)
    file = PredictionFile(tmp_path, {})
    file.write({"n_id": np.arange(300), "id": ids, "embedding": ROWS})
    file.publish(tmp_path / file_name(0))
    (tmp_path / MANIFEST).write_bytes(manifest_text({file_name(0): 300}, {}))
    return str(tmp_path)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_nearest_rows(metric: str) -> None:
    pytest.importorskip("faiss", reason="faiss is an optional package: pip install glt-lightning[neighbours]")
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    near = {
        "cosine": lambda q: unit @ unit[q],
        "dot": lambda q: ROWS @ ROWS[q],
        "l2": lambda q: -np.linalg.norm(ROWS - ROWS[q], axis=1),
    }[metric]
    positions, values = nearest(ROWS, ROWS[:5], 7, metric=metric)
    for q in range(5):
        assert positions[q].tolist() == np.argsort(-near(q))[:7].tolist()
        np.testing.assert_allclose(np.abs(values[q]), np.abs(near(q)[positions[q]]), rtol=1e-4, atol=1e-3)
    rough, _ = nearest(ROWS, ROWS[:5], 7, metric=metric, index="hnsw")
    assert np.mean([len(set(a) & set(b)) for a, b in zip(positions, rough, strict=True)]) > 6


def test_command(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faiss", reason="faiss is an optional package: pip install glt-lightning[neighbours]")
    main(["neighbours", written, "--of", "p7", "--k", "3", "--metric", "l2"])
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    order = np.argsort(np.linalg.norm(ROWS - ROWS[7], axis=1))
    assert [name for name, _ in lines] == [f"p{n}" for n in order[1:4]]


def test_errors(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLT_TRACEBACK", "1")
    with pytest.raises(
        DataError, match=r"--of: no node of .* has the id 'x'. Its 300 nodes have ids such as p0, p1, p2"
    ):
        main(["neighbours", written, "--of", "x"])
    with pytest.raises(OptionError, match=r"metric: expected .*cosine.* got 'far'"):
        main(["neighbours", written, "--of", "p7", "--metric", "far"])
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        OptionError, match=r"the package faiss is needed, which is not installed. pip install 'glt-light"
    ):
        main(["neighbours", written, "--of", "p7"])
