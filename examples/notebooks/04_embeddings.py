# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # Learning a vector for each node
#
# A graph without features can learn a vector for each node. `DistEmbedding` keeps the vectors in memory that the ranks of a host
# share, and a sparse optimizer changes those rows alone that a batch has looked up.

# %%
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import glt_lightning as glt

torch.manual_seed(0)
NODES, CLASSES = 1000, 5
y = torch.arange(NODES) % CLASSES
ends = torch.randint(NODES, (2, 10 * NODES))
within = ends[1] // CLASSES * CLASSES + y[ends[0]]  # a node of the same class
ends[1] = torch.where(torch.rand(10 * NODES) < 0.9, within, ends[1])
split = torch.rand(NODES)
graph = Data(y=y, edge_index=ends, num_nodes=NODES, train_mask=split < 0.6, test_mask=split > 0.6)


# %%
class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = glt.DistEmbedding(16, init=("normal", 0.0, 0.5))
        self.conv = SAGEConv(16, CLASSES)

    def forward(self, batch):
        return self.conv(self.embedding(batch), batch.edge_index)[: batch.batch_size]

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch), batch.y[: batch.batch_size])

    def test_step(self, batch, batch_idx):
        hits = (self(batch).argmax(1) == batch.y[: batch.batch_size]).float().mean()
        self.log("acc", hits, batch_size=batch.batch_size)

    def configure_optimizers(self):
        dense = torch.optim.Adam(self.conv.parameters(), lr=0.01)
        return glt.Optimizers(dense, glt.SparseAdagrad([self.embedding], lr=0.1))


def data_in(num_parts: int) -> glt.GLTDataModule:
    partition = glt.PartitionOptions(num_parts=num_parts, dir=f"data/notebooks/embeddings-{num_parts}")
    return glt.GLTDataModule(graph, undirected=True, num_neighbors=[10], batch_size=64, partition=partition)


def trainer_until(epochs: int) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", max_epochs=epochs, enable_checkpointing=False, **quiet)


# %% [markdown]
# ## Train, and save
#
# The rows lie beside the checkpoint, as plain arrays in the order of your ids.

# %%
seed_everything(1, verbose=False)
model, trainer = Net(), trainer_until(3)
trainer.fit(model, data_in(2))
trainer.save_checkpoint("three.ckpt")
for path in sorted(Path().glob("three.ckpt*")):
    print(path)

# %% [markdown]
# ## Go on with three parts
#
# Rows are found by the ids of your data, so another number of parts makes no difference: the vectors are those that were saved.

# %%
further, trainer = Net(), trainer_until(10)
data = data_in(3)
trainer.fit(further, data, ckpt_path="three.ckpt")
(result,) = trainer.test(further, data, verbose=False)
print(result)
assert result["acc"] > 0.6

# %% [markdown]
# With several ranks: `--trainer.strategy glt_worker --trainer.devices 2`, and on several hosts `glt-lightning launch`.
