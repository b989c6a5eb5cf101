"""CSVs as people have them, with text ids, categories, gaps and dates: fit, test and predict by the command line alone."""

from __future__ import annotations

import csv
import datetime
import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from glt_lightning.cli import main
from glt_lightning.graph import Manifest
from glt_lightning.partition.sources.tables.encoding import encode_rows

FIELDS = ["biology", "chemistry", "physics"]
# 15 lines, no code.
CONFIG = """\
model: {class_path: glt_lightning.GraphSAGE, init_args: {hidden_channels: 64, num_layers: 2, lr: 0.01}}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    num_neighbors: [10, 10]
    batch_size: 64
    undirected: true
    dataset:
      nodes:
        paper: {path: papers.csv, id: paper, label: field, split: fold, features: "*", encode: auto}
        author: {path: authors.csv, id: email, features: "*", encode: auto}
        venue: {path: venues.csv, id: venue, features: "*", encode: {kind: one_hot, founded: {as: date, format: "%d/%m/%Y"}}}
      edges:
        author__writes__paper: {path: writes.csv, source: email, destination: paper}
        paper__in__venue: {path: appears.csv, source: paper, destination: venue}
"""


def write(folder: Path, name: str, *columns: str) -> Any:
    """A function that writes rows under these columns."""

    def rows(values: list[tuple[Any, ...]]) -> None:
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as sink:
            csv.writer(sink).writerows([columns, *values])

    return rows


def write_tables(folder: Path) -> None:
    """A paper's field shows in its authors, in its venue and, of one paper in three, in its keyword."""
    draw = random.Random(0)
    field = {f"P-{i:03d}": draw.choice(FIELDS) for i in range(300)}
    author = {f"a{i}@uni.edu": draw.choice(FIELDS) for i in range(80)}
    venue = {f"V{i}": FIELDS[i % 3] for i in range(9)}

    def gap(value: Any, word: str = "") -> Any:
        return word if draw.random() < 0.1 else value

    def day(first: int, last: int) -> datetime.date:
        return datetime.date(draw.randint(first, last), draw.randint(1, 12), draw.randint(1, 28))

    def alike(known: dict[str, str], name: str) -> str:
        likely = [each for each, of in known.items() if of == name]
        return draw.choice(likely) if draw.random() < 0.8 else draw.choice(list(known))

    write(folder, "papers", "paper", "field", "fold", "pages", "published", "language", "keyword")(
        [
            (
                *(paper, name, draw.choice(["train", "train", "val", "test"]), gap(draw.randint(4, 30), "NA")),
                *(gap(day(2010, 2024)), gap(draw.choice(["en", "de"]))),
                gap(f"{name if draw.random() < 0.3 else 'any'} {draw.randint(0, 15)}"),
            )
            for paper, name in field.items()
        ]
    )
    write(folder, "authors", "email", "country", "born")(
        [(each, gap(draw.choice(["US", "CN", "NA"])), gap(draw.randint(1940, 2000))) for each in author]
    )
    write(folder, "venues", "venue", "kind", "founded")(
        [(each, draw.choice(["journal", "book"]), gap(f"{day(1950, 1999):%d/%m/%Y}")) for each in venue]
    )
    write(folder, "writes", "email", "paper")(
        [(alike(author, of), each) for each, of in field.items() for _ in range(3)]
    )
    write(folder, "appears", "paper", "venue")([(each, alike(venue, of)) for each, of in field.items()])


def test_the_tables_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (config,) = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "papers.csv" in each]
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    (tmp_path / "papers.yaml").write_text(config)
    main(["fit", "--config", "papers.yaml", "--trainer.fast_dev_run", "1", "--trainer.accelerator", "cpu"])
    assert "classes of paper: 0 = biology, 1 = chemistry, 2 = physics" in capfd.readouterr().err


@pytest.mark.slow
def test_from_tables_to_a_tested_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(CONFIG.splitlines()) <= 15
    write_tables(tmp_path)
    (tmp_path / "papers.yaml").write_text(CONFIG)
    given = ["--config", "papers.yaml", "--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
    main(["fit", *given, "--trainer.max_epochs", "8", "--seed_everything", "1"])
    main(["test", *given, "--ckpt_path", "best"])
    found = re.search(r"test_acc\D+([\d.]+)", capfd.readouterr().out)
    assert found is not None
    assert float(found.group(1)) > 0.6  # of three classes
    main(["predict", *given, "--ckpt_path", "best"])
    assert len(list(tmp_path.rglob("predictions"))) == 1

    (folder,) = (tmp_path / "data" / "partitions").iterdir()
    manifest = Manifest.load(folder)
    assert set(manifest.num_categories) == {"paper"}
    width = {t: manifest.num_features(t) for t in manifest.schema.node_types}
    assert width == {
        "author": 6,
        "paper": 7,
        "venue": 4,
    }  # 3 countries; 2 languages; 2 kinds; numbers; and who has gaps
    later = encode_rows(folder, pd.read_csv("papers.csv").head(5), "paper")
    assert (later["x"].shape, later["x_codes"].shape) == ((5, 7), (5, 1))
