"""Each native op in plain torch. Slow, short and normative: the kernels must give exactly these results.

Graphs come as plain CSC tensors per edge type: ``indptr`` int64 [rows + 1], ``neighbors`` int64 [E] (any id space), with
every row in canonical order: ascending (user id of the source, edge id).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that torch holds."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift_right(z: Tensor, n: int) -> Tensor:
    """Logical shift of int64."""
    return (z >> n) & ((1 << (64 - n)) - 1)


def mix(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64 over int64 bit patterns; products wrap."""
    z = (z ^ _shift_right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift_right(z, 31)


def _bits(value: int) -> Tensor:
    return torch.tensor(_signed(value), dtype=torch.int64)


def row_streams(batch_key: int, hop: int, edge_type_key: int, user_ids: Tensor, trees: Tensor | None = None) -> Tensor:
    """int64 [F]: the stream of draws of each row. trees: int64 [F], those of the rows of a disjoint batch."""
    hop_key = mix(mix(_bits(batch_key) ^ mix(_bits(hop + 1))) ^ _bits(edge_type_key))
    if trees is not None:
        hop_key = mix(hop_key ^ mix(trees + 1))
    return mix(hop_key + user_ids * _signed(_GOLDEN))


def draw(streams: Tensor, i: int, n: Tensor) -> Tensor:
    """int64 [F]: the i-th draw of each row, uniform in [0, n): high half of the product of 64 random bits and n < 2^31."""
    bits = mix(streams + _signed((i + 1) * _GOLDEN))
    high, low = _shift_right(bits, 32), bits & 0xFFFFFFFF
    return _shift_right(high * n + _shift_right(low * n, 32), 32)


def pick_positions(streams: Tensor, degrees: Tensor, fanout: int, replace: bool) -> list[Tensor]:
    """Per row the picked positions, ascending.

    Without replacement by Floyd's algorithm: draw i is uniform in [0, j], j = degree - fanout + i, and a position that
    was taken before is replaced by j.
    """
    rows = []
    for stream, degree in zip(streams, degrees.tolist(), strict=True):
        if fanout < 0 or (not replace and degree <= fanout):
            rows.append(torch.arange(degree))
            continue
        picked: list[int] = []
        for i in range(fanout if degree else 0):
            j = degree - fanout + i
            n = degree if replace else j + 1
            q = int(draw(stream, i, torch.tensor(n)))
            picked.append(j if not replace and q in picked else q)
        rows.append(torch.tensor(sorted(picked), dtype=torch.int64))
    return rows


def pick_weighted(stream: Tensor, weights: list[int], fanout: int, replace: bool) -> Tensor:
    """The picked positions of a row with integer weights, ascending. Draw i is uniform in [0, W), W the weight that is left, and
    picks the entry into whose part of that range it falls; without replacement its weight is then gone."""
    left = list(weights)
    positive = [p for p, w in enumerate(left) if w]
    if fanout < 0 or (not replace and len(positive) <= fanout):
        return torch.tensor(positive, dtype=torch.int64)
    picked: list[int] = []
    for i in range(fanout if positive else 0):
        q, p = int(draw(stream, i, torch.tensor(sum(left)))), 0
        while q >= left[p]:
            q -= left[p]
            p += 1
        picked.append(p)
        left[p] = left[p] if replace else 0
    return torch.tensor(sorted(picked), dtype=torch.int64)


def source_numbers(
    batch_key: int, hop: int, node_type_key: int, user_ids: Tensor, trees: Tensor | None = None
) -> Tensor:
    """int64 [n], bit patterns of unsigned numbers: the one number that each node of a type has in a hop, by which LABOR draws it.
    trees: int64 [n], of the rows that draw, in a disjoint batch."""
    role = int.from_bytes(hashlib.blake2b(b"labor", digest_size=8).digest(), "little")
    key = mix(_bits(batch_key) ^ mix(_bits(role)))
    return row_streams(int(key), hop, node_type_key, user_ids, trees)


def pick_smallest(numbers: Tensor, weights: list[int], fanout: int) -> Tensor:
    """The positions that a row picks by LABOR, ascending: those of the smallest number / weight, rounded down; of equal ones the
    first. numbers: int64 [entries], as `source_numbers`."""
    positive = [p for p, w in enumerate(weights) if w]
    if 0 <= fanout < len(positive):
        unsigned = [number & _MASK for number in numbers.tolist()]
        positive = sorted(sorted(positive, key=lambda p: unsigned[p] // weights[p])[:fanout])
    return torch.tensor(positive, dtype=torch.int64)


def row_weights(sums: Tensor, left: Tensor | None = None) -> list[int]:
    """The weights of a row with these prefix sums; 0 for positions that are not ``left``."""
    weights = torch.diff(sums.to(torch.int64), prepend=torch.zeros(1, dtype=torch.int64)).tolist()
    kept = set(range(len(weights)) if left is None else left.tolist())
    return [w if p in kept else 0 for p, w in enumerate(weights)]


def sample_rows(
    indptr: Tensor,
    rows: Tensor,
    user_ids: Tensor,
    fanout: int,
    *,
    batch_key: int,
    hop: int,
    edge_type_key: int,
    replace: bool,
    left: list[Tensor] | None = None,
    sums: Tensor | None = None,
    trees: Tensor | None = None,
    labor: tuple[int, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Positions in the edge arrays that the rows pick.

    rows: int64 [F] into ``indptr``; user_ids: int64 [F], the nodes' user ids, which key the draws.  left: for each row the
    positions that are not excluded, ascending; None: nothing is.  sums: int [E], prefix sums of weights within each row; None:
    all neighbours weigh the same.  trees: as for `row_streams`.  labor: (key of the sources' type, their user ids int64 [E]),
    where draws are by LABOR.
    Returns (counts int64 [F], positions int64 [sum of counts] in row order).
    """
    begin = indptr[rows]
    streams = row_streams(batch_key, hop, edge_type_key, user_ids, trees)
    degrees = (
        indptr[rows + 1] - begin if left is None else torch.tensor([len(each) for each in left], dtype=torch.int64)
    )
    if labor is not None:
        picks = []
        for i, (b, e) in enumerate(zip(begin.tolist(), indptr[rows + 1].tolist(), strict=True)):
            tree = None if trees is None else trees[i].expand(e - b)
            same = torch.arange(1, e - b + 1) if sums is None else sums[b:e]
            kept = row_weights(same, None if left is None else left[i])
            picks.append(pick_smallest(source_numbers(batch_key, hop, labor[0], labor[1][b:e], tree), kept, fanout))
    elif sums is None:
        picks = pick_positions(streams, degrees, fanout, replace)
        if left is not None:
            picks = [each[p] for each, p in zip(left, picks, strict=True)]
    else:
        each_row = [sums[b:e] for b, e in zip(begin.tolist(), indptr[rows + 1].tolist(), strict=True)]
        weights = [row_weights(s, None if left is None else left[i]) for i, s in enumerate(each_row)]
        picks = [pick_weighted(s, w, fanout, replace) for s, w in zip(streams, weights, strict=True)]
    counts = torch.tensor([len(p) for p in picks], dtype=torch.int64)
    positions = [p + b for p, b in zip(picks, begin, strict=True)]
    return counts, torch.cat(positions) if positions else torch.empty(0, dtype=torch.int64)


def left_of(
    indptr: Tensor, neighbors: Tensor, rows: Tensor, user_ids: Tensor, excluded: Set[tuple[int, int]]
) -> list[Tensor]:
    """For each row the positions that are left. excluded: (destination, source) in user ids; all parallel copies go."""
    left = []
    for row, dst in zip(rows.tolist(), user_ids.tolist(), strict=True):
        sources = neighbors[indptr[row] : indptr[row + 1]].tolist()
        kept = [i for i, src in enumerate(sources) if (dst, src) not in excluded]
        left.append(torch.tensor(kept, dtype=torch.int64))
    return left


def in_windows(
    edge_type: ReferenceEdgeType, rows: Tensor, since: Tensor | None, until: Tensor | None, left: list[Tensor] | None
) -> list[Tensor]:
    """For each row the positions of entries with since <= time <= until, both int64 [F] of the rows or None. left: as
    `left_of` gives it; None: all."""
    assert edge_type.times is not None
    found = []
    for i, row in enumerate(rows.tolist()):
        times = edge_type.times[edge_type.indptr[row] : edge_type.indptr[row + 1]]
        inside = torch.ones(len(times), dtype=torch.bool)
        if since is not None:
            inside &= times >= since[i]
        if until is not None:
            inside &= times <= until[i]
        kept = torch.arange(len(times)) if left is None else left[i]
        found.append(kept[inside[kept]])
    return found


def has_edges(indptr: Tensor, neighbors: Tensor, dst: Tensor, src: Tensor) -> Tensor:
    """bool [n]: whether the row ``dst[i]`` has the neighbour ``src[i]``."""
    rows = [neighbors[indptr[d] : indptr[d + 1]] for d in dst.tolist()]
    return torch.tensor([bool((row == s).any()) for row, s in zip(rows, src, strict=True)], dtype=torch.bool)


def induce(indptr: Tensor, neighbors: Tensor, rows: Tensor, members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row the entries whose neighbour is a member: (counts [rows], positions among the members, those of the entries).

    members: int64 [M], ascending, each once."""
    entries = [torch.arange(int(indptr[r]), int(indptr[r + 1])) for r in rows.tolist()]
    found = [at[torch.isin(neighbors[at], members)] for at in entries]
    whole = torch.cat([torch.empty(0, dtype=torch.int64), *found])
    return torch.tensor([len(at) for at in found]), torch.searchsorted(members, neighbors[whole]), whole


def relabel(ids: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """(unique int64, lids int32): ids numbered by first occurrence after ``known``; of equal known ids the first counts."""
    unique = known.tolist()
    lid: dict[int, int] = {}
    for i, value in enumerate(unique):
        lid.setdefault(value, i)
    lids = []
    for value in ids.tolist():
        if value not in lid:
            lid[value] = len(unique)
            unique.append(value)
        lids.append(lid[value])
    return torch.tensor(unique, dtype=torch.int64), torch.tensor(lids, dtype=torch.int32)


def column_pointers(dst: Tensor, nodes: int) -> Tensor:
    """int64 [nodes + 1]: number of edges into the nodes before each. dst: [E], ascending."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(dst, minlength=nodes).cumsum(0)])


def by_source(src: Tensor, dst: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """(where the edges of each source begin [nodes + 1], their destinations [E], their positions [E]), in the order of sources;
    those of one source stay in theirs."""
    perm = torch.argsort(src, stable=True)
    return column_pointers(src[perm], nodes), dst[perm], perm


def gather(shards: list[Tensor], ids: Tensor) -> Tensor:
    """Rows of an array stacked from shards."""
    return torch.cat(shards).index_select(0, ids)


def decode(stored: Tensor, encoding: str) -> Tensor:
    """float32 of rows as they are stored: float16 [n, ...], bfloat16 [n, ...], or int8 as uint8 [n, 4 + D], scale first."""
    if encoding == "int8":
        scale = stored[:, :4].clone(memory_format=torch.contiguous_format).view(torch.float32)
        return scale * stored[:, 4:].contiguous().view(torch.int8).float()
    return stored.float()


def gather_sum(rows: Tensor, src: Tensor, dst: Tensor, n: int, *, mean: bool = False) -> Tensor:
    """float32 [n, ...]: sums, or means, of the rows of each destination's sources, added in the order of the edges.

    rows: float32 [N, ...].  src, dst: int64 [E], dst ascending.
    """
    out, count = torch.zeros(n, *rows.shape[1:]), torch.zeros(n, dtype=torch.int64)
    for source, destination in zip(src.tolist(), dst.tolist(), strict=True):
        out[destination] += rows[source]
        count[destination] += 1
    return out / count.clamp(min=1).view(-1, *[1] * (rows.dim() - 1)) if mean else out


@dataclass(frozen=True)
class ReferenceEdgeType:
    """An edge type of the user's graph: node types by index, rows by the user's destination id, sources by user id. sums: as in
    `sample_rows`.  times: int64 [E], of entries; rows are then in the order of (time, user id of the source, edge id).
    source_key: of the schema's `node_type_keys`, that of the source, where draws are by LABOR."""

    source: int
    destination: int
    key: int
    indptr: Tensor
    neighbors: Tensor
    edge_ids: Tensor
    sums: Tensor | None = None
    times: Tensor | None = None
    source_key: int | None = None


@dataclass
class ReferenceBatch:
    """n_id per node type; (edge_index [2, E], e_id [E]) per edge type; counts as in a batch. tree: per node type, int64 [N],
    where batches are disjoint."""

    n_id: list[Tensor]
    edge_index: list[Tensor]
    e_id: list[Tensor]
    nodes_per_hop: list[list[int]] = field(default_factory=list)
    edges_per_hop: list[list[int]] = field(default_factory=list)
    tree: list[Tensor] | None = None


def khop(
    edge_types: list[ReferenceEdgeType],
    num_types: int,
    seeds: Mapping[int, Tensor],
    fanouts: list[list[int]],
    *,
    batch_key: int,
    replace: bool = False,
    excluded: Mapping[int, Set[tuple[int, int]]] | None = None,
    trees: Mapping[int, Tensor] | None = None,
    since: Tensor | None = None,
    until: Tensor | None = None,
    last: bool = False,
) -> ReferenceBatch:
    """A whole batch in the user's ids. seeds: by node type.  excluded: by edge type, as for `left_of`.  trees: int64, of the
    seeds, by node type, where batches are disjoint: a node is then one of a tree.  since, until: int64, for each tree: of
    rows with times those entries are drawn from for which since <= time <= until.  last: the latest of them are picked.

    Local ids of a type: its seeds first (one row each, also when equal), then by first occurrence in the order hop, edge
    type, frontier local id, pick. Each node is expanded in the hop after it was found.
    """
    empty = torch.empty(0, dtype=torch.int64)
    # a node of a tree is known by both: without trees, all are in one
    nodes = [seeds.get(t, empty) + (0 if trees is None else trees.get(t, empty) * _MOST_IDS) for t in range(num_types)]
    frontier = [(0, len(n)) for n in nodes]
    nodes_per_hop = [[len(n)] for n in nodes]
    edges: list[list[Tensor]] = [[] for _ in edge_types]
    edge_ids: list[list[Tensor]] = [[] for _ in edge_types]
    for hop, per_edge_type in enumerate(fanouts):
        for r, (edge_type, fanout) in enumerate(zip(edge_types, per_edge_type, strict=True)):
            begin, end = frontier[edge_type.destination]
            tree, rows = _apart(nodes[edge_type.destination][begin:end])
            gone = None if excluded is None else excluded.get(r)
            left = None if gone is None else left_of(edge_type.indptr, edge_type.neighbors, rows, rows, gone)
            if edge_type.times is not None and (since is not None or until is not None):
                bounds = [None if bound is None else bound[tree] for bound in (since, until)]
                left = in_windows(edge_type, rows, bounds[0], bounds[1], left)
                left = [each[max(0, len(each) - fanout) :] if last and fanout >= 0 else each for each in left]
            counts, at = sample_rows(
                edge_type.indptr,
                rows,
                rows,
                fanout,
                batch_key=batch_key,
                hop=hop,
                edge_type_key=edge_type.key,
                replace=replace,
                left=left,
                sums=edge_type.sums,
                trees=None if trees is None else tree,
                labor=None if edge_type.source_key is None else (edge_type.source_key, edge_type.neighbors),
            )
            found = edge_type.neighbors[at] + torch.repeat_interleave(tree, counts) * _MOST_IDS
            nodes[edge_type.source], lids = relabel(found, nodes[edge_type.source])
            dst = torch.repeat_interleave(torch.arange(begin, end), counts)
            edges[r].append(torch.stack([lids.to(torch.int64), dst]))
            edge_ids[r].append(edge_type.edge_ids[at])
        frontier = [(f[1], len(n)) for f, n in zip(frontier, nodes, strict=True)]
        for t, (begin, end) in enumerate(frontier):
            nodes_per_hop[t].append(end - begin)
    return ReferenceBatch(
        n_id=[_apart(each)[1] for each in nodes],
        edge_index=[torch.cat([torch.empty(2, 0, dtype=torch.int64), *e], dim=1) for e in edges],
        e_id=[torch.cat([empty, *e]) for e in edge_ids],
        nodes_per_hop=nodes_per_hop,
        edges_per_hop=[[e.shape[1] for e in hops] for hops in edges],
        tree=None if trees is None else [_apart(each)[0] for each in nodes],
    )


_MOST_IDS = 1 << 40


def _apart(nodes: Tensor) -> tuple[Tensor, Tensor]:
    """(trees, user ids)"""
    return nodes // _MOST_IDS, nodes % _MOST_IDS
