# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # Graphs and tensors that processes share
#
# `DistGraph` is a partitioned graph with its data, and `DistTensor` a tensor with a row for each of its nodes or edges. All work
# alone and in several processes, with the same code.

# %%
import subprocess
import sys
from pathlib import Path

import torch

import glt_lightning as glt
from glt_lightning.base import DataError
from glt_lightning.partition import open_source, partition_graph

folder = "data/notebooks/two-parts"
partition_graph(open_source("demo", "data"), folder, glt.PartitionOptions(num_parts=2), progress=False)
graph = glt.DistGraph(folder)
print(graph.num_nodes(), graph.num_edges(), list(graph.ndata))

# %% [markdown]
# ## Data by row
#
# Rows are numbered by part. `rows_of` and `user_ids` lead from the ids of your data to rows, and back.

# %%
ids = torch.tensor([7, 3, 7])
rows = graph.rows_of(ids)
print(graph.ndata["y"][rows])
assert torch.equal(graph.user_ids(rows), ids)

# %% [markdown]
# ## Tensors
#
# A read copies rows. A write has happened when it returns: every process reads it from then on.

# %%
memory = glt.DistTensor((graph.num_nodes(), 4), torch.float32, "memory")
assert memory.count_nonzero() == 0
memory[rows] = 1.0
memory.add_(rows, torch.ones(3, 4))  # node 7 comes twice
graph.ndata["memory"] = memory
assert graph.ndata["memory"][rows][:, 0].tolist() == [3, 2, 3]

again = glt.DistTensor((graph.num_nodes(), 4), torch.float32, "memory")  # the same name: the same tensor
assert torch.equal(again[:], memory[:])

try:
    graph.ndata["y"][0] = 1  # what the partition stores cannot be written
except DataError as error:
    print(error)
else:
    raise AssertionError("the partition was written")

# %% [markdown]
# ## Neighbours, and who trains on what

# %%
train = glt.node_split(graph.ndata["train_mask"])
found = graph.sample_neighbors(train[:5], 3)
print(list(zip(found.src.tolist(), found.dst.tolist(), strict=True)))
assert set(found.dst.tolist()) <= set(train[:5].tolist())
graph.close()

# %% [markdown]
# ## The same in two processes
#
# A script needs `init_process_group`, and nothing else. `torchrun` starts it.

# %%
SCRIPT = f'''\
import torch

import glt_lightning as glt

torch.distributed.init_process_group("gloo")
with glt.DistGraph("{folder}") as graph:
    seen = glt.DistTensor((graph.num_nodes(),), torch.int64, "seen")
    mine = glt.node_split(graph.ndata["train_mask"])
    seen.add_(mine, 1)
    graph.barrier()
    assert seen.count_nonzero() == graph.ndata["train_mask"].count_nonzero()
    assert seen[:].max() == 1  # each node is one process's
    print(f"rank {{graph.rank}} has {{len(mine)}} nodes")
'''
Path("two_ranks.py").write_text(SCRIPT)
launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "two_ranks.py"]
done = subprocess.run(launch, capture_output=True, text=True, timeout=100)
print(done.stdout)
assert done.returncode == 0, done.stderr
assert done.stdout.count("has") == 2
