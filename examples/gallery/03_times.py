# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # Times: no look into the future
#
# Payments between accounts. Is one of them fraud? What follows a fraud (it is paid back) gives it away, but is not known when the
# payment comes. With `sampling.time_attr` a batch has only what was there at the time of its seeds.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from torch_geometric.data import Data

import glt_lightning as glt

ACCOUNTS, PAYMENTS = 800, 8000
rng = np.random.default_rng(0)
bad = rng.random(ACCOUNTS) < 0.15  # accounts that defraud
edges = rng.integers(0, ACCOUNTS, (2, PAYMENTS))
time = np.sort(rng.integers(0, 10_000, PAYMENTS))
fraud = bad[edges[0]] & (rng.random(PAYMENTS) < 0.7)
back = edges[::-1, fraud]  # the refunds, somewhat later
graph = Data(
    x=torch.from_numpy(rng.normal(size=(ACCOUNTS, 4)).astype(np.float32)),
    edge_index=torch.from_numpy(np.concatenate([edges, back], axis=1)),
    edge_attr=torch.from_numpy(np.repeat([[0.0], [1.0]], [PAYMENTS, fraud.sum()], axis=0).astype(np.float32)),
    edge_time=torch.from_numpy(np.concatenate([time, time[fraud] + 50])),
    y=torch.from_numpy(bad.astype(np.int64)),
)

# %% [markdown]
# The seeds: each account at a moment, early or late. The model is the same; only the option differs.

# %%
ids = torch.from_numpy(rng.permutation(ACCOUNTS))
splits = {"train": ids[:400], "val": ids[400:600], "test": ids[600:]}
moments = torch.full((ACCOUNTS,), 3000)


def accuracy(options: dict, when: torch.Tensor | None) -> float:
    seed_everything(0, verbose=False)
    data = glt.GLTDataModule(
        graph,
        num_neighbors=[20],
        batch_size=64,
        seeds={"splits": splits, **({} if when is None else {"input_time": {s: when[i] for s, i in splits.items()}})},
        sampling=options,
    )
    model = glt.NodePredictor(
        data.num_features,
        data.label_facts,
        encoder="GINE",
        edge_facts=data.edge_facts,
        hidden_channels=32,
        num_layers=1,
        lr=0.02,
    )
    trainer = Trainer(
        accelerator="cpu", max_epochs=25, logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(model, data)
    return float(trainer.test(model, data, ckpt_path="best", verbose=False)[0]["test_acc"])


found = {
    "all edges": accuracy({}, None),
    "up to 3,000": accuracy({"time_attr": "edge_time"}, moments),
    "up to 300": accuracy({"time_attr": "edge_time"}, moments // 10),
}
print(found)

# %% [markdown]
# The whole graph looks best, and nobody has it when the question comes. The honest numbers are lower, and grow with the history.

# %%
assert found["all edges"] > found["up to 300"]
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.set(ylabel="test accuracy", ylim=(0.5, 1))
axes.bar(list(found), list(found.values()))
plt.show()
