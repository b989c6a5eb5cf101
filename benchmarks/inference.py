"""Outputs of all nodes: CPU seconds per node of layer-wise inference, beside sampled batches, full-neighbour batches, PyG's loop
over our loader, and the limit: the matrix products, and the edges' rows at the rate of a gather that is measured in between.

    python benchmarks/inference.py PARTITION [--hidden 256] [--layers 3] [--batch_size 4096] [--sampled 4096] [--whole 16]
        [--share 1.0] [--rounds 1]

GraphSAGE with means in one process and one thread, on a partition folder of one part; ways take turns. Sampled and
full-neighbour batches are measured on some seeds, the latter only if the rows of one batch's edges fit in the memory that is
available. PyG's loop is that of `BasicGNN.inference`: for each layer, batches of one hop with all neighbours, and
`inference_per_layer` on the rows of their nodes. --share: of a large graph the limit and PyG's loop are measured on that share
of the nodes and edges, spread over all, without what they do once; layer-wise inference is always of all nodes.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from measure import cpu_s, report
from torch_geometric.nn import GraphSAGE

from glt_lightning import GLTDataModule, LoaderSpec, LocalPartition, Session, predict_layerwise, read_embeddings
from glt_lightning.graph import edge_path
from glt_lightning.kernels import Shards

_WHOLE_BATCH = 4  # seeds
_AVAILABLE = re.compile(r"MemAvailable: +(\d+) kB")


class Holding(LightningModule):
    def __init__(self, gnn: GraphSAGE) -> None:
        super().__init__()
        self.gnn = gnn


class Ways:
    """Each returns (number of nodes it has computed, their outputs). not_counted: CPU seconds that went into preparations."""

    not_counted = 0.0

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._partition = args, LocalPartition.open(args.partition)
        self.nodes = self._partition.manifest.num_nodes[0]
        self._widths = [self._partition.node_shards(0, "x").row_shape[0]] + [args.hidden] * args.layers
        torch.manual_seed(1)
        self._gnn = GraphSAGE(self._widths[0], args.hidden, args.layers, args.hidden).eval()

    def layerwise(self) -> tuple[int, np.ndarray]:
        data = GLTDataModule(partition={"dir": self._args.partition}, num_neighbors=[1], batch_size=1)
        with tempfile.TemporaryDirectory(dir=self._args.work) as folder:
            trainer = Trainer(
                accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False
            )
            options = {"batch_size": self._args.batch_size, "self_check": 0}
            predict_layerwise(trainer, Holding(self._gnn), data, Path(folder) / "out", options=options)
            if self._args.share < 1:
                return self.nodes, np.empty(0)
            with self._uncounted():
                return self.nodes, read_embeddings(Path(folder) / "out")["embedding"]

    def pyg(self) -> tuple[int, np.ndarray]:
        seeds = self._spread(int(self.nodes * self._args.share))
        with Session(self._partition) as session, torch.no_grad():
            size = self._args.batch_size
            spec = LoaderSpec(name="all", seeds=seeds, num_neighbors=[-1], batch_size=size, exact=True)
            with self._uncounted():
                rows = np.argsort(self._partition.node_shards(0, "n_id").gather(np.arange(self.nodes)))
                x = torch.from_numpy(self._partition.node_shards(0, "x").gather(rows)).float()
            for k in range(self._args.layers):
                outs = []
                for batch in session.make_loader(spec):
                    found = x[batch.n_id]
                    outs.append(self._gnn.inference_per_layer(k, found, batch.edge_index, batch.batch_size))
                x = torch.cat(outs)
                if len(seeds) < self.nodes and k + 1 < self._args.layers:  # values do not matter then
                    with self._uncounted():
                        x = x[torch.arange(self.nodes) % len(seeds)]
        return len(seeds), x.numpy()

    def sampled(self) -> tuple[int, np.ndarray]:
        return self._batches([15, 10, 5][: self._args.layers], self._args.sampled, 1024)

    def whole(self) -> tuple[int, np.ndarray]:
        return self._batches([-1] * self._args.layers, self._args.whole, _WHOLE_BATCH)

    def whole_fits(self) -> bool:
        """Whether a full-neighbour batch does: PyG's layers make a row for each edge that leads to a node of their outputs."""
        spec = LoaderSpec(
            name="one",
            seeds=self._spread(_WHOLE_BATCH),
            num_neighbors=[-1] * self._args.layers,
            batch_size=_WHOLE_BATCH,
            exact=True,
        )
        with Session(self._partition) as session:
            (batch,) = session.make_loader(spec)
        edges = [sum(batch.num_sampled_edges[: hops + 1]) for hops in range(self._args.layers)]
        rows = [e * width * 4 for e, width in zip(reversed(edges), self._widths, strict=False)]
        available = int(_AVAILABLE.search(Path("/proc/meminfo").read_text())[1]) << 10  # type: ignore[index]
        reached = {"seeds": _WHOLE_BATCH, "nodes": sum(batch.num_sampled_nodes), "edges": edges[-1]}
        report(way="whole", **reached, gb_of_rows=round(max(rows) / 1e9, 1), gb_available=round(available / 1e9, 1))
        return 2 * max(rows) < available  # the rows, and what is made of them

    def _spread(self, count: int) -> np.ndarray:
        """Seeds, spread over all nodes."""
        return np.linspace(0, self.nodes - 1, min(count, self.nodes)).astype(np.int64)

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        begun = cpu_s()
        yield
        self.not_counted += cpu_s() - begun

    def _batches(self, fanouts: list[int], count: int, batch_size: int) -> tuple[int, np.ndarray]:
        seeds, outs = self._spread(count), []
        with Session(self._partition) as session, torch.no_grad():
            spec = LoaderSpec(name="some", seeds=seeds, num_neighbors=fanouts, batch_size=batch_size, exact=True)
            for batch in session.make_loader(spec):
                hops = {
                    "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
                    "num_sampled_edges_per_hop": batch.num_sampled_edges,
                }
                outs.append(self._gnn(batch.x.float(), batch.edge_index, **hops)[: batch.batch_size])
        return len(seeds), torch.cat(outs).numpy()

    def products(self) -> tuple[int, np.ndarray]:
        """The limit's first part: two products of all rows in each layer."""
        out, batches = torch.empty(0), max(1, round(self.nodes * self._args.share / self._args.batch_size))
        for width, after in zip(self._widths, self._widths[1:], strict=False):
            x, w = torch.randn(self._args.batch_size, width), torch.randn(width, after)
            for _ in range(batches):
                out = x @ w + x @ w
        return batches * self._args.batch_size, out.numpy()

    def gathers(self) -> tuple[int, np.ndarray]:
        """Its second part: the rows of the edges' sources, gathered into memory that is used again."""
        sources = np.load(self._args.partition / edge_path(0, 0, "indices"), mmap_mode="r")
        for width in self._widths[:-1]:
            with self._uncounted():
                rows = Shards([np.ones((self.nodes, width), dtype=np.float32)])
                out = np.ones((1 << 14, width), dtype=np.float32)
            for begin in range(0, len(sources), round(len(out) / self._args.share)):
                ids = sources[begin : begin + len(out)].astype(np.int64)
                rows.gather(ids, out[: len(ids)])
        return int(self.nodes * self._args.share), out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition", type=Path)
    for name, value in (("hidden", 256), ("layers", 3), ("batch_size", 4096), ("sampled", 4096), ("whole", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    torch.set_num_threads(1)
    ways = Ways(args)
    whole = bool(args.whole) and ways.whole_fits()
    names = ["gathers", "products", "layerwise", "sampled", *(["whole"] if whole else []), "pyg"]
    spent: dict[str, list[float]] = {name: [] for name in names}
    outputs: dict[str, np.ndarray] = {}
    for _ in range(args.rounds):
        for name in names:
            way: Callable[[], Any] = getattr(ways, name)
            begin, ways.not_counted = cpu_s(), 0.0
            nodes, found = way()
            spent[name].append((cpu_s() - begin - ways.not_counted) / nodes * 1e6)
            print(f"{name}: {spent[name][-1]:.2f} us per node", file=sys.stderr, flush=True)
            if name in ("layerwise", "pyg") and args.share == 1:
                outputs[name] = found
            del found
    limit = [sum(each) for each in zip(spent["gathers"], spent["products"], strict=True)]
    same = {}
    if args.share == 1:
        apart = np.abs(outputs["layerwise"] - outputs["pyg"]).max() / np.abs(outputs["pyg"]).max()
        same["largest_difference"] = float(apart)
    for name in names:
        ratios = [own / low for own, low in zip(spent[name], limit, strict=True)]
        report(
            way=name,
            us_per_node=round(statistics.median(spent[name]), 2),
            of_limit=round(statistics.median(ratios), 2),
            of_limit_by_round=[round(each, 2) for each in ratios],
        )
    faster = [theirs / own for theirs, own in zip(spent["pyg"], spent["layerwise"], strict=True)]
    by_round = [round(each, 2) for each in faster]
    report(
        way="layerwise beside pyg",
        times_faster=round(statistics.median(faster), 2),
        times_faster_by_round=by_round,
        nodes=ways.nodes,
        share=args.share,
        **same,
    )


if __name__ == "__main__":
    main()
