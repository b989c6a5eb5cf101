"""The self-check of a module: compares some nodes computed layer by layer with the module's own forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import DataError, EdgeType
from glt_lightning.inference.facts import degrees_in
from glt_lightning.inference.protocol import LayerwiseLayers

_TOLERANCE = 1e-4
_COARSE = {torch.bfloat16: 3e-2, torch.float16: 5e-3}


def check_module(
    module: LayerwiseLayers, batch: Any, edge_types: Mapping[EdgeType, Sequence[str]], node_types: Sequence[str]
) -> bool:
    """Compares a module's layers with its own forward pass, for the seeds of a sampled batch with as many hops as layers. Returns
    False if the module has no forward pass.

    edge_types: names of the attributes of edges.  Raises `DataError`, with both values, if they differ by more than rounding.
    """
    expected = module.reference(batch)
    if expected is None:
        return False
    found = _by_layers(module, batch, edge_types, node_types)
    for name in sorted(expected.keys() & found.keys()):
        _compare(name, found[name], expected[name][: len(found[name])], batch)
    return True


def _compare(name: str, found: Tensor, expected: Tensor, batch: Any) -> None:
    if not expected.is_floating_point():
        return  # such as classes, which rounding may change where two scores are nearly equal
    if found.shape != expected.shape:
        raise DataError(
            f"layer-wise inference: self-check: {name!r}: the layers give {list(found.shape)}, the module's own forward pass "
            f"{list(expected.shape)}. Layers and head have to compute what forward(batch) returns for the seeds."
        )
    if not found.numel():
        return
    scale = float(expected.abs().max())
    apart = (found.double() - expected.double()).abs()
    worst = int(apart.flatten(1).max(1).values.argmax()) if apart.dim() > 1 else int(apart.argmax())
    if not float(apart.max()) <= _COARSE.get(expected.dtype, _TOLERANCE) * max(scale, 1e-6):  # also if it is NaN
        show = [values[worst].flatten()[:4].tolist() for values in (found, expected)]
        raise DataError(
            f"layer-wise inference: self-check: {name!r}: seed {worst} of a batch is {show[0]} layer by layer, but {show[1]} "
            "by the module's own forward pass. A layer of the module reads more than the outputs of a node's neighbours, such as "
            "the whole batch; it cannot be computed this way. Use trainer.predict, or give the module its own layer()."
        )


def _by_layers(
    module: LayerwiseLayers, batch: Any, edge_types: Mapping[EdgeType, Sequence[str]], node_types: Sequence[str]
) -> dict[str, Tensor]:
    """Computes the columns of the seeds, each layer over the prefix of the batch that the later layers need."""
    h, hs = module.embed(batch), []
    (output,) = [t for t in module.output_types if int(getattr(module.store(batch, t), "batch_size", 0) or 0)][:1]
    seeds = int(module.store(batch, output).batch_size)
    last = module.num_layers - 1
    if module.degrees is not None:
        batch.in_degree = degrees_in(batch, len(batch.row), module.degrees).to(batch.row.device)
    for k in range(module.num_layers):
        hops = last - k + 1  # that are left
        counts = {t: module.store(batch, t).num_sampled_nodes for t in node_types}
        sources = {t: rows[: sum(counts[t][: hops + 1])] for t, rows in h.items()}
        part = _prefix(module, batch, hops, counts, edge_types)
        kind = module.aggregates[k]
        out = (
            module.layer(k, sources, part)
            if kind is None
            else {output: _combined(module, k, kind, sources[output], part)}
        )
        h = {t: out.get(t, rows)[: sum(counts[t][:hops])] for t, rows in sources.items()}
        if output in out:
            hs.append(h[output][:seeds])
    return module.head(hs or [h[output][:seeds]], output)


def _combined(module: LayerwiseLayers, k: int, kind: str, h: Tensor, batch: Any) -> Tensor:
    """Computes a layer from the sum or the mean of the neighbours' rows, as a run does."""
    (src, dst), seeds = batch.edge_index, int(batch.batch_size)
    sums = h.new_zeros(seeds, h.size(1)).index_add_(0, dst, h[src])
    if kind == "mean":
        sums = sums / torch.bincount(dst, minlength=seeds).clamp(min=1)[:, None].to(h.dtype)
    return module.combine(k, h[:seeds], sums)


def _prefix(
    module: LayerwiseLayers,
    batch: Any,
    hops: int,
    counts: Mapping[str, Sequence[int]],
    edge_types: Mapping[EdgeType, Sequence[str]],
) -> Any:
    """Makes a batch of one hop from the first ``hops`` hops of a batch; its seeds are all nodes but those of the last hop."""
    part = batch.clone()
    for edge_type, names in edge_types.items():
        store = part[edge_type] if module.typed else part
        edges = sum(store.num_sampled_edges[:hops])
        store.edge_index = store.edge_index[:, :edges]
        for name in (*names, "e_id"):
            if name in store:
                store[name] = store[name][:edges]
        store.num_sampled_edges = [edges]
    for t, per_hop in counts.items():
        store = module.store(part, t)
        store.batch_size = sum(per_hop[:hops])
        store.num_sampled_nodes = [store.batch_size, sum(per_hop[: hops + 1]) - store.batch_size]
        for name in ("row", "n_id", "in_degree", "x"):
            if name in store:
                store[name] = store[name][: sum(per_hop[: hops + 1])]
    return part
