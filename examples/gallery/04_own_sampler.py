# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # A sampler of your own: the latest neighbours
#
# `pick` says which neighbours of a node a batch takes. It sees rows of whatever part a process has, so it works unchanged with
# sampler processes, on several hosts and at graph servers.

# %%
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch_geometric.data import Data

import glt_lightning as glt

# In a module of its own, so that every process can import it.
Path("latest_sampler.py").write_text('''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Latest:
    """The entries with the greatest value of an edge attribute."""

    attr: str = "year"
    version: ClassVar[int] = 1  # count up when it picks otherwise

    def pick(self, rows, fanout, stream):
        counts = np.minimum(rows.degree, fanout)
        row_of = np.repeat(np.arange(len(rows)), rows.degree)
        order = np.lexsort((-rows.attrs[self.attr], row_of))
        rank = np.arange(len(order)) - rows.begin[row_of]
        return counts, (order - rows.begin[row_of])[rank < counts[row_of]]
''')
sys.path.insert(0, ".")
from latest_sampler import Latest  # noqa: E402

# %%
rng = np.random.default_rng(0)
edges, year = rng.integers(0, 500, (2, 20_000)), rng.integers(1990, 2025, 20_000)
graph = Data(
    x=torch.eye(500),
    y=torch.zeros(500, dtype=torch.long),
    edge_index=torch.from_numpy(edges),
    year=torch.from_numpy(year),
)


def years(**sampling) -> np.ndarray:
    """The years of all edges that the batches of an epoch have."""
    data = glt.GLTDataModule(
        graph, num_neighbors=[5], batch_size=100, seeds={"splits": {"train": np.arange(500)}}, sampling=sampling
    )
    data.prepare_data()
    data.setup("fit")
    drawn = np.concatenate([batch.year.numpy() for batch in data.train_dataloader()])
    data.teardown("fit")
    return drawn


uniform, latest = years(), years(picker=Latest(), num_workers=1)
print(f"mean year: {uniform.mean():.1f} by chance, {latest.mean():.1f} with Latest")
assert latest.min() > 1990
assert latest.mean() > uniform.mean() + 10

# %%
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.set(xlabel="year of the edge", ylabel="edges in batches")
axes.hist([uniform, latest], bins=range(1990, 2026, 5), label=["by chance", "Latest"])
axes.legend(frameon=False)
plt.show()
