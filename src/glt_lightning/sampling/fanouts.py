"""Fan-outs as users write them, and as the sampler reads them."""

from __future__ import annotations

from glt_lightning.base import Fanouts, GraphSchema, OptionError, edge_type_str, parse_fanouts


def fanout_table(
    num_neighbors: Fanouts, schema: GraphSchema, name: str = "num_neighbors"
) -> tuple[tuple[int, ...], ...]:
    """[H][R] fan-outs of each hop and edge type. Raises `OptionError` for unknown edge types or unequal lengths,
    which calls them ``name``."""
    if not isinstance(num_neighbors, dict):
        return tuple((k,) * len(schema.edge_types) for k in parse_fanouts(num_neighbors, name))
    names = [edge_type_str(e) for e in schema.edge_types]
    given = {k if isinstance(k, str) else edge_type_str(k): v for k, v in num_neighbors.items()}
    if set(given) != set(names):
        missing, unknown = sorted(set(names) - set(given)), sorted(set(given) - set(names))
        raise OptionError(
            f"{name}: expected a list of fan-outs for each edge type; missing {missing}, unknown {unknown}."
        )
    per_type = [parse_fanouts(given[n], f"{name}[{n}]", least=0) for n in names]
    if len({len(p) for p in per_type}) > 1:
        raise OptionError(f"{name}: expected equally many hops for every edge type; got {num_neighbors}.")
    hops = tuple(zip(*per_type, strict=True))
    if empty := [hop for hop, fanouts in enumerate(hops) if not any(fanouts)]:
        raise OptionError(f"{name}: hop {empty[0]} draws 0 neighbours of every edge type. Drop the hop.")
    return hops
