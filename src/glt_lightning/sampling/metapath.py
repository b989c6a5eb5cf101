"""Metapaths by the names of their edge types."""

from __future__ import annotations

from collections.abc import Sequence

from glt_lightning.base import EdgeType, edge_type_str


def fault_of(metapath: Sequence[EdgeType], again: bool) -> str | None:
    """Explains in a sentence why no walk can go along the edge types; None if walks can. again: the first edge type also has to
    follow the last."""
    following = [*metapath[1:], *(metapath[:1] if again else ())]
    for each, then in zip(metapath, following, strict=False):
        if each[0] != then[2]:
            return (
                f"a step along {edge_type_str(each)} leads to {each[0]!r}, and {edge_type_str(then)} goes on from {then[2]!r}. "
                "Steps go against the edges, from a destination to a source. Give edge types that follow each other"
                + (", the first one also after the last." if again else ".")
            )
    return None
