"""CPU seconds of a training step of HGT and RGCN: the ready encoder, and PyG's layers on the same nodes and edges.

    python benchmarks/typed_step.py DATASET.npz [--num_neighbors 15 10] [--batch_size 256] [--hidden 64] [--rounds 5]

DATASET: as `GLTDataModule.dataset`; of one edge type it needs the edge attribute ``edge_type``, and RGCN alone is run. Systems
take turns on each batch, forward and backward, one thread; the first round is not counted. ``PyG``: the encoder with the
``forward`` of PyG's convolutions, already trimmed to the nodes that each layer needs. ``no kernels``: ours with rows of edges.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from measure import report
from torch import Tensor, nn
from torch_geometric.nn import RGCNConv

from glt_lightning import GLTDataModule
from glt_lightning.kernels import keep_freed_memory
from glt_lightning.loader import plain
from glt_lightning.models import encoders, layers as hgt, layers as rgcn
from glt_lightning.models.encoders import EncoderShape, make_encoder


class StockHGT(hgt.HGTLayer):
    def forward(self, x: Any, edges: Any, destinations: Any, values: Any = None) -> dict[str, Tensor]:
        types = {t for e in self.edge_types for t in (e[0], e[2])}
        out = self.conv({t: x[t] for t in sorted(types)}, {e: plain(edges[e]) for e in self.edge_types})
        return {t: rows[: destinations[t]] for t, rows in out.items()}


class StockRGCN(rgcn.RGCNLayer):
    def forward(self, x: Any, edges: Any, destinations: Any, values: Any = None) -> dict[str, Tensor]:
        targets = sorted({dst for _, _, dst in self.edge_types})
        types = sorted({*targets, *(src for src, _, _ in self.edge_types)})
        found, kinds = [], []
        for r, (src, name, dst) in enumerate(self.edge_types):
            row, col = plain(edges[src, name, dst])
            first = sum(len(x[t]) for t in types if t < src), sum(destinations[t] for t in targets if t < dst)
            found.append(torch.stack([row + first[0], col + first[1]]))
            kinds.append(torch.full_like(row, r))
        rows = torch.cat([x[t] for t in types]), torch.cat([x[t][: destinations[t]] for t in targets])
        out = RGCNConv.forward(self.conv, rows, torch.cat(found, dim=1), torch.cat(kinds))
        return dict(zip(targets, out.split([destinations[t] for t in targets]), strict=True))


def systems_of(name: str, options: dict[str, Any], shape: EncoderShape) -> dict[str, nn.Module]:
    make = partial(make_encoder, name, options, shape)
    systems = {"ours": make()}
    with ExitStack() as stack:
        for module in (encoders, hgt, rgcn):
            stack.enter_context(patch.object(module, "fuse_layers", lambda layer: layer))
        systems["no kernels"] = make()
    stock = {"HGTLayer": StockHGT, "RGCNLayer": StockRGCN, "EdgeKindConv": RGCNConv}
    with patch.multiple(encoders, **stock):
        systems["PyG"] = make()
    return systems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--num_neighbors", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as root:
        sizes = {"num_neighbors": args.num_neighbors, "batch_size": args.batch_size}
        data = GLTDataModule(args.dataset, root=root, undirected=True, **sizes)
        data.prepare_data()
        data.setup()
        batches = [batch.clone() for _, batch in zip(range(args.batches), data.train_dataloader(), strict=False)]
        graph = {"metadata": data.metadata, "num_nodes": data.num_nodes}
        target = data.target_type if data.metadata else None
        shape = EncoderShape(
            in_channels=data.num_features,
            hidden_channels=args.hidden,
            num_layers=len(args.num_neighbors),
            dropout=0.5,
            target_type=target,
            **graph,
        )
        data.teardown()
    if target:
        models = {"HGT": {"heads": 4}, "RGCN": {}}
    else:
        models = {"RGCN": {"num_relations": 1 + max(int(batch.edge_type.max()) for batch in batches)}}
    for name, options in models.items():
        spent: dict[str, list[float]] = {}
        systems = systems_of(name, options, shape)
        for number in range(args.rounds + 1):
            for batch in batches:
                for system, model in systems.items():
                    model.zero_grad(set_to_none=True)
                    began = time.process_time()
                    model(batch).square().mean().backward()
                    if number:
                        spent.setdefault(system, []).append(time.process_time() - began)
        for system, seconds in spent.items():
            seconds.sort()
            report(
                bench="typed_step",
                model=name,
                system=system,
                steps=len(seconds),
                cpu_ms=1e3 * seconds[len(seconds) // 2],
                least_ms=1e3 * seconds[0],
                most_ms=1e3 * seconds[-1],
            )


if __name__ == "__main__":
    main()
