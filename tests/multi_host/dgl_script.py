"""A training script by DGL's names, which knows nothing of the hosts that it runs on: their list, and where the graph is, come
from outside. It saves what it has learned as weights.pt, on rank 0."""

import itertools
import sys
from pathlib import Path

import numpy as np
import torch as th
import torch.nn as nn
import torch.nn.functional as F

import glt_lightning.compat.dgl as dgl

dgl.distributed.initialize(sys.argv[1], num_workers=1)
th.distributed.init_process_group(backend="gloo")
g = dgl.distributed.DistGraph("part")
book = g.get_partition_book()
mask = g.ndata["train_mask"]

# Each node of the split is one rank's, and most lie on its host.
mine = dgl.distributed.node_split(mask, book)
taken = dgl.distributed.DistTensor((g.number_of_nodes(),), th.int64, "taken")
taken[mine] = taken[mine] + 1
g.barrier()
assert th.equal(taken[:] == 1, mask[:]), "not a split"
hosts = len(Path(sys.argv[1]).read_text().splitlines())
host = book.partid % hosts
local = book.nid2partid(mine) % hosts == host
assert local.float().mean() > 0.8, local.float().mean()


class SAGE(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(dgl.nn.SAGEConv(*each, "mean") for each in itertools.pairwise(widths))

    def forward(self, blocks, x):
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x if not number else F.relu(x))
        return x


# The same nodes in the same batches on any hosts: not those of node_split, which go by where rows are.
nids = mask[:].nonzero()[:, 0][g.rank() :: dgl.distributed.get_num_clients()]
sampler = dgl.dataloading.MultiLayerNeighborSampler([3, 5])
loader = dgl.dataloading.DistNodeDataLoader(g, nids, sampler, batch_size=64, shuffle=True)
embedding = dgl.distributed.DistEmbedding(g.number_of_nodes(), 8, "embedding", init_func=("normal", 0.0, 0.1))
th.manual_seed(0)
model = nn.parallel.DistributedDataParallel(SAGE([8 + g.ndata["x"].shape[1], 16, int(g.ndata["y"][:].max()) + 1]))
dense = th.optim.Adam(model.parameters(), lr=0.01)
sparse = dgl.distributed.optim.SparseAdagrad([embedding], lr=0.05)
for _ in range(2):
    for inputs, outputs, blocks in loader:
        x = th.cat([g.ndata["x"][inputs], embedding(inputs)], 1)
        loss = F.cross_entropy(model(blocks, x), g.ndata["y"][outputs])
        dense.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()

# Edges, those of other hosts among them, with negatives.
eids = dgl.distributed.edge_split(th.arange(g.number_of_edges()), book)[:200]
negatives = dgl.dataloading.negative_sampler.Uniform(2)
edges = dgl.dataloading.DistEdgeDataLoader(
    g, eids, dgl.dataloading.NeighborSampler([2]), batch_size=100, exclude="self", negative_sampler=negatives
)
for _, pairs, apart, (block,) in edges:
    rows = block.dstdata[dgl.NID]
    assert th.equal(th.stack(g.find_edges(pairs.edata[dgl.EID])), rows[th.stack(pairs.edges())])
    assert apart.num_edges() == 200
if g.rank() == 0:
    states = {"embedding": embedding(np.arange(g.number_of_nodes())).detach(), **model.state_dict()}
    th.save(states, "weights.pt")
print("trained by", g.rank(), "on host", host, "of", hosts)
