"""A request for a batch as a header and a body: the same for sampler processes and graph servers.

Checks that do not depend on the graph are here, those that do in `workers.server.question`.

A request carries everything that its batch depends on, so a sampler keeps no state of loaders or epochs. Names of types
are their indices in the schema.

**The request** (``make`` of a graph server):

* ``session``, ``talk``: the client's session and the number of its stream (graph servers only)
* ``run``, ``number``: the client's names for the batch; a request that is known already is not carried out twice
* ``key``: 64 bits, the key of all draws; ``neighbor_key``, optional: 64 bits, the key of the draws of neighbours, if
  several batches share it
* ``config``: see below
* arrays ``seeds``: int64 [S], gids of ``seed_type``; ``input_id``: int64 [S], their positions in the loader's seeds
* arrays ``seeds/<node type>``, optional: int64, seeds of further node types
* arrays ``tree/<node type>``, optional, in a disjoint batch: int32, the tree of each seed
* arrays ``since``, ``until``, optional, with ``timed``: the bounds of each seed, with ``link`` of each edge
* arrays ``excluded/<edge type>``, optional: int64 [2, X], as in ``expand``
* arrays ``extra/<name>``, optional: come back in the batch as ``seed/<name>``, unchanged; arrays for seeds of a further
  node type are named ``<node type>/<name>``, and ``<node type>/input_id`` are their positions
* arrays ``link/<name>``, with ``link``: ``dst`` int64 [S], the destinations of edges whose sources are ``seeds``;
  optional ``negatives`` and ``source_negatives`` [S, K], ``trial_src`` and ``trial_dst`` [N, T] (user ids), ``rejected``
  [n], and ``time`` [S], by which negatives have to exist. Arrays of ``more_links`` are named ``link/<edge type>/<name>``,
  and ``link/<edge type>/src`` are the sources

**config** always has ``seed_type``, ``fanouts`` (for each of at most 16 hops a list of the edge types' fan-outs, -1 to
65536), ``replace``, ``with_edge`` and ``threads``. Other fields are sent only if they differ from their defaults:

* ``stored``: attributes that are stored as float16 or bfloat16 come undecoded
* ``pointers``, ``by_source``: the batch has the arrays ``edge/<edge type>/edge_index/colptr`` and ``edge/<edge
  type>/edge_index/by_source`` (`sampling.sample`)
* ``with_row``: the batch has ``node/<node type>/n_id/row``, int64, the number of each node in its type
* ``node_attrs``, ``edge_attrs``: false: the batch has neither ids nor attributes of nodes, of edges
* ``aggregate``: ``mean`` or ``sum``: the first layer is aggregated; the batch has ``x_neighbors/mean`` or
  ``x_neighbors/sum``, and ends a hop earlier
* ``disjoint``: every seed has a tree of its own, or that of ``tree/<node type>``; the batch has the tree of each node
  as ``node/<node type>/batch``
* ``timed``, ``last``, ``labor``, ``picker``: as in ``expand``; the picker is compared with that of the server
* ``subgraph``: ``kind``, ``limit`` and ``reverse`` (for each edge type the one of the other direction, or -1). The kind
  ``bidirectional`` adds ``edge/<edge type>/edge_index/is_flipped``; a batch of kind ``induced`` has no
  ``num_sampled_edges``
* ``importance``: walks find the neighbours: ``edge_types`` (names of the edge types of the batch, in order),
  ``metapaths`` (for each the indices of stored edge types, as in ``walk``), ``walks``, ``length``, ``restart``,
  ``ends`` and ``self_loops``. ``fanouts`` are then those of these edge types, ``edge_attrs`` is false, and the batch
  has ``edge/<edge type>/visits`` int64 and ``edge/<edge type>/edge_weight`` float32
* ``link``: the batch is made of edges (`sampling.link_task`), and has arrays such as ``link/edge_label_index``;
  ``more_links``: a list of the same for further edge types
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from glt_lightning.base import DEFAULT_DRAW, MAX_FANOUT, DataError, read_integer
from glt_lightning.kernels import ExcludedEdges, Trees
from glt_lightning.sampling import BatchRequest, ImportanceTask, SamplerConfig
from glt_lightning.workers.transport.message import Message, pack

MOST_HOPS = 16  # GLT_MAX_HOPS of glt/api.h
# Followed by a node type or a name: arrays that few requests have.
_SEEDS, _EXTRA, _LINK = "seeds/", "extra/", "link/"
_PREFIXES = (_EXTRA, _SEEDS, _LINK)

_FIELDS = {field.name: field for field in fields(SamplerConfig)}
# Always sent. Other fields are sent only if they differ from their default, which keeps headers small: a request uses few.
_ALWAYS = {*DEFAULT_DRAW.to_wire(), "threads"} | {name for name, field in _FIELDS.items() if field.default is MISSING}
_CHOICES = {name: field.metadata["choices"] for name, field in _FIELDS.items() if "choices" in field.metadata}
_READS = {name: field.metadata["read"] for name, field in _FIELDS.items() if "read" in field.metadata}
_RANGES = {name: field.metadata["range"] for name, field in _FIELDS.items() if "range" in field.metadata}


def write_config(config: SamplerConfig) -> dict[str, Any]:
    """A configuration as JSON values, the inverse of `read_config`."""
    values = {name: getattr(config, name) for name in _FIELDS}
    sent = {name: value for name, value in values.items() if name in _ALWAYS or value != _FIELDS[name].default}
    if config.link is not None:
        sent["link"] = config.link.to_wire()
    if config.subgraph is not None:
        sent["subgraph"] = config.subgraph.to_wire()
    if config.importance is not None:
        sent["importance"] = config.importance.to_wire()
    if config.picker is not None:
        sent["picker"] = config.picker.to_wire()
    return sent | ({"more_links": [each.to_wire() for each in config.more_links]} if config.more_links else {})


def read_config(given: Any, num_edge_types: int | None = None) -> SamplerConfig:
    """A configuration from another process. Raises `DataError`.

    num_edge_types: of the graph; None: not checked, for a sender of this job.
    """
    if not isinstance(given, Mapping) or not _ALWAYS <= set(given) <= set(_FIELDS):
        raise wrong_fields("config", _ALWAYS, given, optional=set(_FIELDS) - _ALWAYS)
    values: dict[str, Any] = {}
    walked = None if given.get("importance") is None else ImportanceTask.from_wire(given["importance"])
    columns = num_edge_types if walked is None or num_edge_types is None else len(walked.edge_types)
    for name, value in given.items():
        if name == "fanouts":
            values[name] = _read_fanouts(value, columns)
        elif name in _READS:
            values[name] = _READS[name](value, num_edge_types)
        elif name in _RANGES:
            values[name] = read_integer(given, name, *_RANGES[name])
        elif name in _CHOICES:
            if value not in _CHOICES[name]:
                raise DataError(f"{name}: expected {' or '.join(_CHOICES[name])}, got {value!r:.50}.")
            values[name] = value
        elif isinstance(value, bool):
            values[name] = value
        else:
            raise DataError(f"{name}: expected true or false, got {value!r:.50}.")
    return SamplerConfig(**values)


def write_request(request: BatchRequest) -> tuple[dict[str, Any], np.ndarray]:
    """(header, body uint8 [n]) of a request, the inverse of `read_request`."""
    further = {f"{_SEEDS}{node_type}": gids for node_type, gids in request.more_seeds.items()}
    further |= {f"{_EXTRA}{name}": values for name, values in request.extras.items()}
    further |= {f"{_LINK}{name}": values for name, values in request.link.items()}
    further |= {} if request.excluded is None else request.excluded.to_arrays()
    further |= {} if request.trees is None else request.trees.to_arrays()
    arrays, body = pack({"seeds": request.seeds, "input_id": request.input_id, **further})
    shared = {} if request.neighbor_key is None else {"neighbor_key": request.neighbor_key}
    return {"number": request.number, "key": request.key, "arrays": arrays} | shared, body


def read_request(message: Message) -> BatchRequest:
    """A request from another process; its arrays are views of the body. Raises `DataError` or, for a
    damaged message, `WireError`."""
    arrays = message.arrays()
    extras, more, link = ({n.removeprefix(p): arrays[n] for n in arrays if n.startswith(p)} for p in _PREFIXES)
    named = all(_is_name(name) for name in (*extras, *link)) and all(_is_number(name) for name in more)
    plain = {
        name
        for name in arrays
        if not name.startswith(_PREFIXES) and not ExcludedEdges.is_array(name) and not Trees.is_array(name)
    }
    if plain != {"seeds", "input_id"} or not named:
        further = {f"{_SEEDS}<node type>", f"{_EXTRA}<name>", f"{_LINK}<name>", "excluded/<edge type>"}
        further |= {"tree/<node type>", "until", "since"}
        raise wrong_fields("arrays", {"seeds", "input_id"}, arrays, optional=further)
    for name, array in arrays.items():
        if array.ndim == 0:
            raise DataError(f"{name}: expected an array of at least one dimension, got {array.dtype} [].")
    seeds, input_id = (_read_ids(name, arrays[name]) for name in ("seeds", "input_id"))
    if len(seeds) != len(input_id):
        raise DataError(f"make: {len(seeds)} seeds, but {len(input_id)} positions in input_id.")
    return BatchRequest(
        read_integer(message.header, "number", 0, 2**62),
        read_integer(message.header, "key", 0, 2**64 - 1),
        seeds,
        input_id,
        {int(name): _read_ids(f"{_SEEDS}{name}", gids) for name, gids in more.items()},
        extras,
        link,
        ExcludedEdges.from_arrays(arrays),
        Trees.from_arrays(arrays),
        read_integer(message.header, "neighbor_key", 0, 2**64 - 1) if "neighbor_key" in message.header else None,
    )


def wrong_fields(source: str, known: Set[str], given: Any, optional: Set[str] = frozenset()) -> DataError:
    """The error for an object with missing or unknown fields."""
    got = sorted(given) if isinstance(given, Mapping) else given
    more = f" (optional: {', '.join(sorted(optional))})" if optional else ""
    return DataError(f"{source}: expected the fields {', '.join(sorted(known))}{more}; got {got!r:.200}.")


def _read_fanouts(given: Any, num_edge_types: int | None) -> tuple[tuple[int, ...], ...]:
    if not isinstance(given, list) or (num_edge_types is not None and len(given) > MOST_HOPS):
        raise DataError(f"fanouts: expected a list of at most {MOST_HOPS} hops, got {given!r:.100}.")
    for hop in given:
        whole = isinstance(hop, list) and num_edge_types in (None, len(hop))
        if not whole or not all(type(k) is int and -1 <= k <= MAX_FANOUT for k in hop):
            count = "" if num_edge_types is None else f"{num_edge_types} "
            raise DataError(
                f"fanouts: expected {count}integers per hop, one per edge type, each -1 (all) or 0 to {MAX_FANOUT}; "
                f"got {hop!r:.100}."
            )
    return tuple(tuple(hop) for hop in given)


def _read_ids(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype != np.int64 or array.ndim != 1:
        raise DataError(f"{name}: expected int64 [S], got {array.dtype} {list(array.shape)}.")
    return array


def _is_name(name: str) -> bool:
    """Tells whether ``name`` is that of an array of the seeds, or, as ``<index>/<name>``, of the seeds of a further type."""
    of, separator, name = name.rpartition("/")
    return name.isidentifier() and (_is_number(of) if separator else True)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name
