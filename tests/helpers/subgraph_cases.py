"""Further edges of batches that a device samples: random cases, each compared with the CPU and with brute force over the user's
list of edges. `kernels` says on which device."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from glt_lightning.base import CacheOptions, DrawOptions
from glt_lightning.kernels import CudaKHopOp, DeviceGraph, ExcludedEdges, Kernels, KHopOp, Trees
from glt_lightning.sampling import BatchRequest, SamplerConfig, SubgraphTask
from glt_lightning.sampling.device_subgraph import DeviceEdgeFinder
from glt_lightning.sampling.subgraph import complete_edges
from glt_lightning.sampling.subgraph_task import BIDIRECTIONAL, INDUCED
from tests.helpers.device_cases import assert_same_batch, far_graph, to
from tests.helpers.device_parts import PartsCase, as_array, sampled
from tests.helpers.graphs import HETERO, SINGLE, TypedGraph, excluded_edges, random_data, random_excluded, random_seeds
from tests.helpers.owners import make_cache
from tests.helpers.partitions import gids_of

REVERSES = {SINGLE: [(0,)], HETERO: [(1, 0, 2), (1, 0, -1), (-1, 0, 2)]}


def check_further_edges(kernels: Kernels, folder: Path, seed: int) -> int:
    """Any cut and owners, weights, trees, excluded edges, and cached lists or not: the batches of the CPU with and without remote
    parts, bit by bit, and the edges of brute force. Returns the number of edges."""
    rng = np.random.default_rng(seed)
    edge_types = (SINGLE, HETERO)[seed % 2]
    graph = TypedGraph.random(rng, edge_types, most=int(rng.choice([6, 40])))
    if rng.integers(2):
        graph.weigh(rng)
    parts = int(rng.integers(2, 6))
    order, here = rng.permutation(parts).tolist(), int(rng.integers(1, parts + 1))
    others = np.array_split(order[here:], int(rng.integers(1, parts - here + 1))) if here < parts else []
    owners = [order[:here], *(list(map(int, each)) for each in others)]
    memory = (("device", "uva", "hybrid")[rng.integers(3)], ("device", "cpu")[rng.integers(2)])
    named = {"undirected": False, "weight": "weight" if graph.weights else None}
    with ExitStack() as opened:
        case = opened.enter_context(
            closing(PartsCase(kernels, folder, random_data(rng, graph), owners, memory, **named))
        )
        kept = (None, None)
        if others and rng.integers(2):
            options = CacheOptions(bytes=1 << 25, topology=int(rng.choice([400, 1 << 24])))
            kept = tuple(opened.enter_context(closing(make_cache(case.here, case.remote, options))) for _ in range(2))
        return sum(_check_batch(case, graph, edge_types, rng, kept) for _ in range(3))


def _check_batch(case, graph, edge_types, rng, kept) -> int:
    kind = (INDUCED, BIDIRECTIONAL)[rng.integers(2)]
    reverses = REVERSES[edge_types]
    reverse = reverses[rng.integers(len(reverses))] if kind == BIDIRECTIONAL else ()
    task = SubgraphTask(kind=kind, reverse=reverse, limit=(None, 1 << 20)[rng.integers(2)])
    fanouts = rng.choice([0, 1, 2, 5, 70, -1], (int(rng.integers(0, 4)), case.edge_types))
    options = {"subgraph": task, "with_edge": kind == BIDIRECTIONAL, "disjoint": bool(rng.integers(2))}
    seed_type, gid_of = int(rng.integers(len(graph.num_nodes))), gids_of(case.whole)
    config = SamplerConfig(seed_type, tuple(map(tuple, fanouts.tolist())), weights=case.weights, **options)
    excluded = random_excluded(graph, rng) if rng.integers(2) else {}
    requests = []
    for number in range(2):
        more = {t: gid_of[t][ids] for t, ids in random_seeds(graph, rng).items()}
        seeds = more.pop(seed_type, np.empty(0, dtype=np.int64))
        trees = None
        if config.disjoint and rng.integers(2):  # several seeds in a tree
            each = {**more, seed_type: seeds}
            trees = Trees({t: rng.integers(0, 5, len(ids)).astype(np.int32) for t, ids in each.items()})
        key = int(rng.integers(0, 2**64, dtype=np.uint64))
        gone = excluded_edges(graph, excluded, gid_of)
        requests.append(BatchRequest(number, key, seeds, np.arange(len(seeds)), more, excluded=gone, trees=trees))
    case.check(config, requests, kept)
    sampler, total = case.sampler(config, kept[1]), 0
    for request in requests:
        arrays = {name: as_array(value) for name, value in sampled(sampler, request).arrays.items()}
        found = [_edges(arrays, r, graph) for r in range(case.edge_types)]
        wanted = _induced(arrays, graph, excluded) if kind == INDUCED else _reverse(arrays, graph, excluded, reverse)
        assert found == wanted
        total += sum(map(Counter.total, found))
    return total


def _nodes(arrays: Mapping[str, np.ndarray], node_type: int) -> list[tuple[int, int]]:
    """(tree, user id) of each."""
    ids = arrays[f"node/{node_type}/n_id"].tolist()
    return list(zip(arrays.get(f"node/{node_type}/batch", np.zeros(len(ids), np.int64)).tolist(), ids, strict=True))


def _types(graph: TypedGraph) -> list[tuple[int, int]]:
    return list(zip(graph.schema.source_types(), graph.schema.destination_types(), strict=True))


def _listed(arrays: Mapping[str, np.ndarray], edge_type: int) -> list[tuple[int, int, int, bool]]:
    """(edge id, lid of the source, lid of the destination, whether it is flipped) of each edge."""
    key = f"edge/{edge_type}"
    ids, ends = arrays[f"{key}/e_id"].tolist(), arrays[f"{key}/edge_index"].tolist()
    flipped = arrays.get(f"{key}/edge_index/is_flipped", np.zeros(len(ids), np.bool_)).tolist()
    return list(zip(ids, *ends, flipped, strict=True))


def _edges(arrays: Mapping[str, np.ndarray], edge_type: int, graph: TypedGraph) -> Counter:
    """Every edge by its id, its ends by (tree, user id) and whether it is flipped; its ends are those of its id."""
    src, dst = (_nodes(arrays, t) for t in _types(graph)[edge_type])
    found: Counter = Counter()
    for i, s, d, flipped in _listed(arrays, edge_type):
        pair = (src[s][1], dst[d][1])
        assert (pair[::-1] if flipped else pair) == tuple(graph.edges[edge_type][:, i].tolist())
        found[i, src[s], dst[d], flipped] += 1
    return found


def _stored(graph: TypedGraph, edge_type: int, *, weighted: bool = True) -> dict[tuple[int, int], list[int]]:
    """The edges of each (source, destination); weighted: but for those of weight 0."""
    weights, found = graph.weights.get(edge_type), defaultdict(list)
    for i, pair in enumerate(zip(*graph.edges[edge_type].tolist(), strict=True)):
        if not weighted or weights is None or weights[i] > 0:
            found[pair].append(i)
    return found


def _induced(arrays: Mapping[str, np.ndarray], graph: TypedGraph, excluded: Mapping[int, set]) -> list[Counter]:
    wanted = []
    for r, (source, destination) in enumerate(_types(graph)):
        stored, edges = _stored(graph, r), Counter()
        sources = set(_nodes(arrays, source))
        for tree, d in _nodes(arrays, destination):  # a seed that comes twice has its edges twice
            for other, s in sources:
                if other == tree and (d, s) not in excluded.get(r, ()):
                    edges.update((i, (tree, s), (tree, d), False) for i in stored.get((s, d), ()))
        wanted.append(edges)
    return wanted


def _reverse(
    arrays: Mapping[str, np.ndarray], graph: TypedGraph, excluded: Mapping[int, set], reverse: tuple[int, ...]
) -> list[Counter]:
    types, sampled, wanted = _types(graph), [], []
    for r in range(len(types)):
        count = int(arrays["num_sampled_edges"].reshape(len(types), -1)[r].sum())
        sampled.append(_listed(arrays, r)[:count])
        wanted.append(Counter())
    for r, (source, destination) in enumerate(types):
        src, dst = _nodes(arrays, source), _nodes(arrays, destination)
        wanted[r].update((i, src[s], dst[d], False) for i, s, d, _ in sampled[r])
    for r, other in enumerate(reverse):
        if other < 0:
            continue
        src, dst = (_nodes(arrays, t) for t in types[r])
        first: dict[tuple[int, int], int] = {}
        for lid, node in enumerate(dst):
            first.setdefault(node, lid)
        # the other direction of what was sampled for each node, once for a seed that comes twice
        asked = [(i, dst[d], src[s]) for i, s, d, _ in sampled[r] if first[dst[d]] == d]
        known = {(i, t_s, t_d) for i, t_s, t_d, _ in wanted_sampled(sampled[other], arrays, types[other])}
        stored, anyhow, gone = _stored(graph, other), _stored(graph, other, weighted=False), excluded.get(other, ())
        for s, d in {(s, d) for _, s, d in asked if (d[1], s[1]) not in gone}:
            new = [i for i in stored.get((s[1], d[1]), ()) if (i, s, d) not in known]
            wanted[other].update((i, s, d, False) for i in new)
        if other == r:
            missing = [(i, s, d) for i, s, d in asked if (d[1], s[1]) not in gone and (s[1], d[1]) not in anyhow]
            wanted[r].update((i, s, d, True) for i, s, d in missing)
    return wanted


def wanted_sampled(edges, arrays, types):
    src, dst = (_nodes(arrays, t) for t in types)
    return [(i, src[s], dst[d], flipped) for i, s, d, flipped in edges]


def check_far_further_edges(kernels: Kernels, first: int) -> None:
    """Ids of more than 31 bits: induced edges, and those of the other direction, of trees or not."""
    view, rng = far_graph(first, 50), np.random.default_rng(first % 997)
    draw, fanouts, seeds = DrawOptions(with_edge=True), [[3], [2]], first + rng.integers(0, 50, 9)
    device_graph = DeviceGraph.from_view(view, kernels)
    for kind, disjoint in ((INDUCED, False), (INDUCED, True), (BIDIRECTIONAL, False), (BIDIRECTIONAL, True)):
        task = SubgraphTask(kind=kind, reverse=(0,) if kind == BIDIRECTIONAL else ())
        config = SamplerConfig(1, tuple(map(tuple, fanouts)), subgraph=task, disjoint=disjoint, with_edge=True)
        trees = Trees().for_seeds({1: seeds}) if disjoint else None
        want = KHopOp(view, fanouts, draw, disjoint=disjoint)({1: seeds}, 5, None, trees)
        got = CudaKHopOp(device_graph, fanouts, draw)({1: to(kernels, seeds)}, 5, None, trees)
        some = ExcludedEdges.of({0: (want.gid[1][want.dst[0]][::7], want.gid[1][want.src[0]][::7])})
        source = SimpleNamespace(
            config=config,
            view=view,
            edges=[],
            complete=lambda found, excluded: None,
            ask=lambda question: partial(question.answer, view),
            reached_edges=lambda edges: None,
        )
        full = complete_edges(source, want, some)
        assert len(full.src[0]) > len(want.src[0])
        found = DeviceEdgeFinder(device_graph, config, [int(view.edge_bounds[0, -1])]).complete(got, some)
        assert_same_batch(found, full)
        for mine, theirs in zip(found.flipped or [], full.flipped or [], strict=True):
            assert mine.tolist() == theirs.tolist()
