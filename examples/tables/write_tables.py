"""Writes two Parquet tables with text ids, in the shape in which data leaves a database: papers and who cites whom.

A paper's field shows in whom it cites and, faintly, in its features, so that a model can learn it.

python examples/tables/write_tables.py                    # papers.parquet and cites.parquet in data/library
python -m lightning fit --config examples/tables/config.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FIELDS = np.array(["biology", "chemistry", "mathematics", "physics"])
PAPERS, CITATIONS, WIDTH = 2000, 12_000, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("data/library"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    field = rng.integers(0, len(FIELDS), PAPERS)
    ids = np.array([f"W{number}" for number in rng.permutation(10 * PAPERS)[:PAPERS]])
    pq.write_table(papers(rng, ids, field), folder / "papers.parquet")
    pq.write_table(citations(rng, ids, field), folder / "cites.parquet")
    print(f"wrote {folder}/papers.parquet and {folder}/cites.parquet")


def papers(rng: np.random.Generator, ids: np.ndarray, field: np.ndarray) -> pa.Table:
    features = rng.normal(size=(PAPERS, WIDTH)).astype(np.float32)
    features[np.arange(PAPERS), field] += 1
    columns = {
        "paper_id": ids,
        "field": FIELDS[field],
        "fold": rng.choice(["train", "val", "test"], PAPERS, p=[0.3, 0.2, 0.5]),
        "year": rng.integers(1990, 2025, PAPERS),
    }
    return pa.table(columns | {f"f_{column}": features[:, column] for column in range(WIDTH)})


def citations(rng: np.random.Generator, ids: np.ndarray, field: np.ndarray) -> pa.Table:
    """Four of five citations stay within the field."""
    citing, cited = rng.integers(0, PAPERS, (2, CITATIONS))
    by_field = [np.flatnonzero(field == each) for each in range(len(FIELDS))]
    for position in np.flatnonzero(rng.random(CITATIONS) < 0.8):
        cited[position] = rng.choice(by_field[field[citing[position]]])
    return pa.table({"citing": ids[citing], "cited": ids[cited], "year": rng.integers(1990, 2025, CITATIONS)})


if __name__ == "__main__":
    main()
