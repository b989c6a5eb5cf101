"""DGL's example of node classification by sampled batches, as a script of a training run; for an interpreter with DGL.

    PYTHON_OF_DGL benchmarks/headline_dgl.py CONFIG GRAPH [--precision bf16]

As headline_pyg.py, for homogeneous graphs: the model, the loader and the loop are those of DGL's example of GraphSAGE.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
import yaml
from dgl.dataloading import DataLoader, NeighborSampler
from dgl.nn import SAGEConv
from torch import nn
from torch.nn.functional import cross_entropy, dropout, relu


def read(path: str, options: dict[str, Any]) -> tuple[dgl.DGLGraph, dict[str, torch.Tensor]]:
    if Path(path).is_dir():
        names = {"train_idx": "train", "valid_idx": "valid", "test_idx": "test", "x": "feat", "y": "label"}
        indptr, indices = (torch.from_numpy(np.load(Path(path, f"{name}.npy"))) for name in ("indptr", "indices"))
        graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
        arrays = {key: torch.from_numpy(np.load(Path(path, f"{file}.npy"))) for key, file in names.items()}
    else:
        arrays = {key: torch.from_numpy(value) for key, value in np.load(path).items() if value.dtype.kind in "fiu"}
        graph = dgl.graph(tuple(arrays["edge_index"]), num_nodes=len(arrays["y"]))
        if options.get("undirected"):
            graph = dgl.to_simple(dgl.to_bidirected(graph))
    x = arrays["x"].float()
    if options.get("normalize") == "rows":
        x = x / x.sum(1, keepdim=True).clamp(min=1)
    elif options.get("normalize") == "standardize":
        x = (x - x.mean(0)) / x.std(0).clamp(min=1e-6)
    graph.ndata["feat"], graph.ndata["label"] = x, arrays["y"]
    return graph, arrays


class SAGE(nn.Module):
    def __init__(self, width: int, hidden: int, layers: int, classes: int, drop: float) -> None:
        super().__init__()
        widths = [width, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))
        self.drop = drop

    def forward(self, blocks: list[Any], x: torch.Tensor) -> torch.Tensor:
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if number < len(self.layers) - 1:
                x = dropout(relu(x), self.drop, self.training)
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("graph")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--precision", choices=("32", "bf16"), default="32")
    args = parser.parse_args()
    config = yaml.safe_load(Path(args.config).read_text())
    torch.manual_seed(config["seed_everything"])
    given, options = config["data"]["init_args"], config["model"]["init_args"]
    graph, arrays = read(args.graph, given)
    classes, layers = int(arrays["y"].max()) + 1, options["num_layers"]
    width = graph.ndata["feat"].shape[1]
    model = SAGE(width, options["hidden_channels"], layers, classes, options["dropout"])
    optimizer = torch.optim.Adam(model.parameters(), lr=options["lr"], weight_decay=options["weight_decay"])
    mixed = args.precision == "bf16"

    def outputs(blocks: list[Any]) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return model(blocks, blocks[0].srcdata["feat"]).float()

    def loader(split: str, fanouts: list[int], size: int, shuffle: bool = False) -> DataLoader:
        sampler = NeighborSampler(fanouts[::-1], prefetch_node_feats=["feat"], prefetch_labels=["label"])
        return DataLoader(graph, arrays[f"{split}_idx"], sampler, batch_size=size, shuffle=shuffle, num_workers=0)

    @torch.no_grad()
    def accuracy(batches: DataLoader) -> float:
        model.eval()
        right = [(outputs(blocks).argmax(1) == blocks[-1].dstdata["label"]).float() for _, _, blocks in batches]
        return float(torch.cat(right).mean())

    later = given.get("evaluation", {})
    fanouts, size = later.get("num_neighbors", given["num_neighbors"]), later.get("batch_size", 1024)
    train = loader("train", given["num_neighbors"], given["batch_size"], shuffle=True)
    val, test = (loader(split, fanouts, size) for split in ("valid", "test"))
    epochs, found = args.epochs or config["trainer"]["max_epochs"], 0.0
    for _ in range(epochs):
        model.train()
        for _, _, blocks in train:
            optimizer.zero_grad()
            cross_entropy(outputs(blocks), blocks[-1].dstdata["label"]).backward()
            optimizer.step()
        found = accuracy(val)
    print(f"val_acc {found:.4f} test_acc {accuracy(test):.4f} epochs {epochs}")


if __name__ == "__main__":
    main()
