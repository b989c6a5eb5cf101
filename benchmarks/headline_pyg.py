"""What a PyG user writes today, as a script of a training run: with NeighborLoader, or on the full graph.

    PYTHON benchmarks/headline_pyg.py CONFIG GRAPH [--full] [--until ACCURACY] [--precision bf16]

CONFIG is the configuration of our run: fan-outs, batch size, epochs and options of the model are taken from it. GRAPH: an `.npz`
file, homogeneous or typed, or the folder of make_graph.py.
The loader is PyG's where pyg-lib or torch-sparse is installed, else ours of the same name, which is faster; ``loader`` in the
output says which. Each epoch validates. --full trains on the whole graph until its validation accuracy is --until, but 1000
epochs at most.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.typing as available
import yaml
from measure import tell_step
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero
from torch_geometric.transforms import NormalizeFeatures, ToUndirected
from torch_geometric.utils import to_undirected

if available.WITH_PYG_LIB or available.WITH_TORCH_SPARSE:
    from torch_geometric.loader import NeighborLoader

    LOADER = "pyg"
else:
    from glt_lightning.loader import NeighborLoader

    LOADER = "ours"
_MOST_EPOCHS = 1000
SPLITS = (("train", "train_idx"), ("val", "valid_idx"), ("test", "test_idx"))


def read(path: str, options: dict[str, Any]) -> Data | HeteroData:
    if Path(path).is_dir():
        return read_folder(Path(path))
    arrays = {name: torch.from_numpy(array) for name, array in np.load(path).items() if array.dtype.kind in "fiub"}
    if "edge_index" not in arrays:
        return read_typed(arrays, options)
    x, y, edges = (arrays[name] for name in ("x", "y", "edge_index"))
    data = Data(x=x.float(), y=y, edge_index=to_undirected(edges) if options.get("undirected") else edges)
    if options.get("normalize") == "rows":
        data = NormalizeFeatures()(data)
    elif options.get("normalize") == "standardize":
        data.x = (data.x - data.x.mean(0)) / data.x.std(0).clamp(min=1e-6)
    add_masks(data, {name: arrays[key] for name, key in SPLITS})
    return data


def read_folder(folder: Path) -> Data:
    arrays = {
        name: torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("indptr", "indices", "feat", "label")
    }
    degrees = arrays["indptr"].diff()
    edges = torch.stack([arrays["indices"], torch.arange(len(degrees)).repeat_interleave(degrees)])
    data = Data(x=arrays["feat"], y=arrays["label"], edge_index=edges)
    files = {name: folder / f"{key.removesuffix('_idx')}.npy" for name, key in SPLITS}
    add_masks(data, {name: torch.from_numpy(np.load(path)) for name, path in files.items() if path.exists()})
    return data


def read_typed(arrays: dict[str, torch.Tensor], options: dict[str, Any]) -> HeteroData:
    """Types without attributes get the rows of a unit matrix."""
    data = HeteroData()
    for name, array in arrays.items():
        kind, _, what = name.partition("/")
        if what == "edge_index":
            data[tuple(kind.split("__"))].edge_index = array
        elif what == "num_nodes" and f"{kind}/x" not in arrays:
            data[kind].x = torch.eye(int(array))
        elif what in ("x", "y"):
            data[kind][what] = array.float() if what == "x" else array
    (target,) = (name.removesuffix("/y") for name in arrays if name.endswith("/y"))
    add_masks(data[target], {name: arrays[f"{target}/{key}"] for name, key in SPLITS})
    return (ToUndirected()(data) if options.get("undirected") else data).contiguous()  # as pyg-lib asks


def add_masks(store: Any, splits: dict[str, torch.Tensor]) -> None:
    for name, ids in splits.items():
        store[f"{name}_mask"] = torch.zeros(len(store.y), dtype=torch.bool)
        store[f"{name}_mask"][ids] = True


class TypedSAGE(torch.nn.Module):
    """The layers of our typed model, by PyG's: a projection of each type, convolutions by ``to_hetero``, and a head."""

    def __init__(self, data: HeteroData, target: str, model: dict[str, Any], classes: int) -> None:
        super().__init__()
        width, self.target = model["hidden_channels"], target
        self.projections = torch.nn.ModuleDict(
            {t: torch.nn.Linear(data[t].num_features, width) for t in data.node_types}
        )
        gnn = GraphSAGE(width, width, model["num_layers"], dropout=model["dropout"])
        self.gnn, self.dropout = to_hetero(gnn, data.metadata()), torch.nn.Dropout(model["dropout"])
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x: dict[str, torch.Tensor], edges: dict[Any, torch.Tensor]) -> torch.Tensor:
        found = self.gnn({t: self.projections[t](rows) for t, rows in x.items()}, edges)
        return self.head(self.dropout(found[self.target].relu()))


class Script:
    """The model, its optimizer and the loop, as in PyG's examples. Typed graphs have one type with labels."""

    def __init__(self, config: dict[str, Any], graph: str, precision: str) -> None:
        self.given, model = config["data"]["init_args"], config["model"]["init_args"]
        data = self.data = read(graph, self.given)
        typed = isinstance(data, HeteroData)
        self.target = next(kind for kind in data.node_types if "y" in data[kind]) if typed else None
        self.labelled = data[self.target] if typed else data
        classes, sizes = int(self.labelled.y.max()) + 1, (model["hidden_channels"], model["num_layers"])
        if typed:
            self.model = TypedSAGE(data, self.target, model, classes)
        else:
            self.model = GraphSAGE(data.num_features, *sizes, classes, dropout=model["dropout"])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=model["lr"], weight_decay=model["weight_decay"])
        self.mixed = precision == "bf16"
        self.stepped = False

    def cast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if self.mixed else contextlib.nullcontext()

    def outputs(self, batch: Any, seeds: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of seeds, and their labels."""
        with self.cast():
            if self.target is None:
                return self.model(batch.x, batch.edge_index)[seeds].float(), batch.y[seeds]
            found = self.model(batch.x_dict, batch.edge_index_dict)
            return found[seeds].float(), batch[self.target].y[seeds]

    def step(self, batch: Any, seeds: Any) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        cross_entropy(*self.outputs(batch, seeds)).backward()
        self.optimizer.step()
        if not self.stepped:
            self.stepped = True
            tell_step()

    @torch.no_grad()
    def right(self, batch: Any, seeds: Any) -> tuple[int, int]:
        self.model.eval()
        found, y = self.outputs(batch, seeds)
        return int((found.argmax(1) == y).sum()), len(found)

    def sampled(self, epochs: int) -> tuple[float, float, int]:
        train = self._loader("train", self.given["num_neighbors"], self.given["batch_size"], shuffle=True)
        later = self.given.get("evaluation", {})
        fanouts, size = later.get("num_neighbors", self.given["num_neighbors"]), later.get("batch_size", 1024)
        val, test = (self._loader(name, fanouts, size) for name in ("val", "test"))
        accuracy = 0.0
        for _ in range(epochs):
            for batch in train:
                self.step(batch, self._seeds(batch))
            accuracy = self._accuracy(val)
        return accuracy, self._accuracy(test), epochs

    def _seeds(self, batch: Any) -> slice:
        return slice((batch if self.target is None else batch[self.target]).batch_size)

    def _loader(self, split: str, fanouts: list[int], size: int, shuffle: bool = False) -> Any:
        mask = self.labelled[f"{split}_mask"]
        nodes = mask if self.target is None else (self.target, mask)
        return NeighborLoader(self.data, fanouts, input_nodes=nodes, batch_size=size, shuffle=shuffle)

    def _accuracy(self, loader: Any) -> float:
        counts = [self.right(batch, self._seeds(batch)) for batch in loader]
        return sum(right for right, _ in counts) / sum(of for _, of in counts)

    def full(self, until: float) -> tuple[float, float, int]:
        accuracy, epoch = 0.0, 0
        while accuracy < until and epoch < _MOST_EPOCHS:
            self.step(self.data, self.labelled.train_mask)
            epoch += 1
            right, of = self.right(self.data, self.labelled.val_mask)
            accuracy = right / of
        right, of = self.right(self.data, self.labelled.test_mask)
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
