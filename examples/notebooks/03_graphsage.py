# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # GraphSAGE on one process and on two
#
# A `GLTDataModule` says which batches, the strategy where they are made: the same seed gives the same
# batches under each strategy, and without dropout the same weights.

# %%
import os
import subprocess
import sys

import torch
from lightning.pytorch import Trainer, seed_everything

import glt_lightning as glt

ENVIRONMENT = dict(os.environ)  # for the job below: Trainers name their ports in that of this process
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def train(strategy: str) -> tuple[Trainer, glt.GraphSAGE, glt.GLTDataModule]:
    seed_everything(42, verbose=False)
    data = glt.GLTDataModule("demo", undirected=True, num_neighbors=[10, 5], batch_size=64)
    model = glt.GraphSAGE(data.num_features, data.num_classes, hidden_channels=64, num_layers=2, dropout=0.0, lr=0.01)
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=1, max_epochs=5, **QUIET)
    trainer.fit(model, data)
    return trainer, model, data


trainer, model, data = train("auto")
(result,) = trainer.test(model, data, verbose=False)
print(result)
assert max(value for name, value in result.items() if "acc" in name) > 0.5

# %%
_, other, _ = train("glt_worker")
assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))

# %% [markdown]
# ## Two ranks
#
# Ranks are processes, so they are started by a command and not in a notebook's kernel. It could name several hosts, too.

# %%
command = """
-m lightning fit --data GLTDataModule --data.dataset demo --data.undirected true --data.num_neighbors [10,5]
--data.batch_size 32 --model GraphSAGE --model.hidden_channels 64 --model.num_layers 2 --model.lr 0.01
--trainer.strategy glt_worker --trainer.accelerator cpu --trainer.devices 2 --trainer.max_epochs 2
--trainer.logger false --trainer.enable_progress_bar false
"""
done = subprocess.run([sys.executable, *command.split()], env=ENVIRONMENT, capture_output=True, text=True, timeout=150)
print(done.stdout[-500:])
assert done.returncode == 0, done.stderr[-3000:]

# %% [markdown]
# ## The vectors of all nodes
#
# `predict_layerwise` computes each layer for all nodes before the next one: exact, and without sampling.

# %%
glt.predict_layerwise(trainer, model, data, "embeddings")
found = glt.read_embeddings("embeddings")
vectors = torch.nn.functional.normalize(torch.as_tensor(found["embedding"]).float(), dim=1)
nearest = (vectors @ vectors[:1].T)[:, 0].topk(4).indices
print("nearest to node 0:", nearest.tolist())
assert nearest[0] == 0 or torch.allclose(vectors[nearest[0]], vectors[0], atol=1e-4)

# %% [markdown]
# As a job on several hosts: `glt-lightning launch --config cluster.yaml`.
