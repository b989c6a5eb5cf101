# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # Partitioning a graph
#
# A graph is cut into parts before it is trained on. This notebook cuts the demo graph, the imports of the installed torch, sympy
# and networkx, in three ways, compares what training on the parts would cost, and looks into a partition folder.

# %%
from pathlib import Path

import numpy as np

from glt_lightning import LocalPartition, PartitionOptions
from glt_lightning.base import Progress
from glt_lightning.lightning import PartitionReport
from glt_lightning.loader import TrafficOptions
from glt_lightning.partition import open_source, partition_graph

source = open_source("demo", "data")
print(source.num_nodes, source.num_features, source.num_classes)

# %% [markdown]
# ## Three algorithms
#
# `random` needs nothing, `streaming` works in bounded memory, and `metis` holds the graph in memory. The *edge cut* is the share
# of edges whose source lies in another part; the *remote share* is that of a batch's nodes, by sampling some batches.

# %%
reports = {}
batches = TrafficOptions(num_neighbors=[15, 10], batch_size=64)
for algorithm in ("random", "streaming", "metis"):
    folder = Path("data/notebooks") / algorithm
    options = PartitionOptions(num_parts=2, algorithm=algorithm)
    partition_graph(source, folder, options, undirected=True, progress=False)
    partition = LocalPartition.open(folder)
    reports[algorithm] = PartitionReport.of(partition, batches, Progress(False))
    partition.close()

for algorithm, report in reports.items():
    counts = {each.kind: each for each in report.contents.counts}
    remote = np.mean([part.remote_share for part in report.traffic[0].parts])
    print(f"{algorithm:9}  cut {report.contents.edge_cut:.0%}  nodes {counts['nodes'].parts}  remote {remote:.0%}")

cut = {algorithm: report.contents.edge_cut for algorithm, report in reports.items()}
assert cut["metis"] < cut["random"], cut
assert cut["streaming"] < cut["random"], cut

# %% [markdown]
# ## What a folder holds
#
# Plain arrays, which processes of a host map into memory, and a manifest that says what they are.

# %%
folder = Path("data/notebooks/metis")
for path in sorted(folder.rglob("*"))[:20]:
    if path.is_file():
        print(f"{path.relative_to(folder)!s:40} {path.stat().st_size:>10,} bytes")

# %% [markdown]
# ## Which part owns a node
#
# Nodes are numbered anew, so that each part owns one range: three numbers say who owns what. The user's ids are an array
# beside them, and batches carry those.

# %%
partition = LocalPartition.open(folder)
(bounds,) = partition.manifest.bounds
print("bounds", bounds)
assert bounds[0] == 0
assert bounds[-1] == source.num_nodes["node"]
partition.close()

# %% [markdown]
# The same from a shell, with the report as text:
#
#     glt-lightning partition --data GLTDataModule --data.dataset demo --data.partition.num_parts 2
#     glt-lightning launch --config cluster.yaml --copy   # copies to each host the parts that it needs
