"""The examples and the page about one's own module run as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.helpers import started

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", sorted(p.name for p in (ROOT / "examples").glob("*.py") if p.name[:10] != "partition_")
)
def test_example_runs(script: str, tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / script, "--max-epochs", "2"]
    with started(command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}) as run:
        assert run.wait(200) == 0, run.output


def test_module_of_the_page_trains(make_data, make_trainer) -> None:
    page = (ROOT / "docs/lightning.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "class NodeClassifier" in block]
    names: dict = {}
    exec(code, names)
    data = make_data()
    trainer = make_trainer(max_epochs=5)
    trainer.fit(names["NodeClassifier"](data.num_features, data.num_classes), data)
    assert trainer.callback_metrics["val_acc"] > 0.5
