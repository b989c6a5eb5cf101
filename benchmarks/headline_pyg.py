"""What a PyG user writes today, as a script of a training run: with NeighborLoader, or on the full graph.

    PYTHON benchmarks/headline_pyg.py CONFIG GRAPH.npz [--full] [--until ACCURACY] [--precision bf16]

CONFIG is the configuration of our run: the graph, fan-outs, batch size, epochs and options of the model are taken from it.
The loader is PyG's where pyg-lib or torch-sparse is installed, else ours of the same name, which is faster; ``loader`` in the
output says which. Each epoch validates. --full trains on the whole graph until its validation accuracy is --until, but 1000
epochs at most. Homogeneous graphs alone.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import numpy as np
import torch
import torch_geometric.typing as available
import yaml
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import to_undirected

if available.WITH_PYG_LIB or available.WITH_TORCH_SPARSE:
    from torch_geometric.loader import NeighborLoader

    LOADER = "pyg"
else:
    from glt_lightning.loader import NeighborLoader

    LOADER = "ours"
_MOST_EPOCHS = 1000


def read(path: str, options: dict[str, Any]) -> Data:
    arrays = np.load(path)
    x, y, edges = (torch.from_numpy(arrays[name]) for name in ("x", "y", "edge_index"))
    data = Data(x=x.float(), y=y, edge_index=to_undirected(edges) if options.get("undirected") else edges)
    if options.get("normalize") == "rows":
        data = NormalizeFeatures()(data)
    elif options.get("normalize") == "standardize":
        data.x = (data.x - data.x.mean(0)) / data.x.std(0).clamp(min=1e-6)
    for name, key in (("train", "train_idx"), ("val", "valid_idx"), ("test", "test_idx")):
        data[f"{name}_mask"] = torch.zeros(len(y), dtype=torch.bool)
        data[f"{name}_mask"][torch.from_numpy(arrays[key])] = True
    return data


class Script:
    """The model, its optimizer and the loop, as in PyG's examples."""

    def __init__(self, config: dict[str, Any], graph: str, precision: str) -> None:
        self.given, model = config["data"]["init_args"], config["model"]["init_args"]
        self.data = read(graph, self.given)
        self.model = GraphSAGE(
            self.data.num_features,
            model["hidden_channels"],
            model["num_layers"],
            int(self.data.y.max()) + 1,
            dropout=model["dropout"],
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=model["lr"], weight_decay=model["weight_decay"])
        self.mixed = precision == "bf16"

    def cast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if self.mixed else contextlib.nullcontext()

    def step(self, x: torch.Tensor, edge_index: torch.Tensor, y: torch.Tensor, seeds: Any) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        with self.cast():
            out = self.model(x, edge_index)[seeds]
        cross_entropy(out.float(), y[seeds]).backward()
        self.optimizer.step()

    @torch.no_grad()
    def right(self, x: torch.Tensor, edge_index: torch.Tensor, y: torch.Tensor, seeds: Any) -> tuple[int, int]:
        self.model.eval()
        with self.cast():
            found = self.model(x, edge_index)[seeds].argmax(1)
        return int((found == y[seeds]).sum()), len(found)

    def sampled(self, epochs: int) -> tuple[float, float, int]:
        train = self._loader("train", self.given["num_neighbors"], self.given["batch_size"], shuffle=True)
        later = self.given.get("evaluation", {})
        fanouts, size = later.get("num_neighbors", self.given["num_neighbors"]), later.get("batch_size", 1024)
        val, test = (self._loader(name, fanouts, size) for name in ("val", "test"))
        accuracy = 0.0
        for _ in range(epochs):
            for batch in train:
                self.step(batch.x, batch.edge_index, batch.y, slice(batch.batch_size))
            accuracy = self._accuracy(val)
        return accuracy, self._accuracy(test), epochs

    def _loader(self, split: str, fanouts: list[int], size: int, shuffle: bool = False) -> Any:
        return NeighborLoader(
            self.data, fanouts, input_nodes=self.data[f"{split}_mask"], batch_size=size, shuffle=shuffle
        )

    def _accuracy(self, loader: Any) -> float:
        counts = [self.right(b.x, b.edge_index, b.y, slice(b.batch_size)) for b in loader]
        return sum(right for right, _ in counts) / sum(of for _, of in counts)

    def full(self, until: float) -> tuple[float, float, int]:
        data, accuracy, epoch = self.data, 0.0, 0
        whole = data.x, data.edge_index, data.y
        while accuracy < until and epoch < _MOST_EPOCHS:
            self.step(*whole, data.train_mask)
            epoch += 1
            right, of = self.right(*whole, data.val_mask)
            accuracy = right / of
        right, of = self.right(*whole, data.test_mask)
        return accuracy, right / of, epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("graph")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--until", type=float, default=1.0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--precision", choices=("32", "bf16"), default="32")
    args = parser.parse_args()
    with open(args.config) as file:
        config = yaml.safe_load(file)
    torch.manual_seed(config["seed_everything"])
    script = Script(config, args.graph, args.precision)
    epochs = args.epochs or config["trainer"]["max_epochs"]
    val, test, epochs = script.full(args.until) if args.full else script.sampled(epochs)
    print(f"val_acc {val:.4f} test_acc {test:.4f} epochs {epochs} loader {'none' if args.full else LOADER}")


if __name__ == "__main__":
    main()
