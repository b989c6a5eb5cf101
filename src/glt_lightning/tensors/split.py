"""Dividing selected rows among ranks: evenly, and so that most rows lie on the host of the rank that gets them."""

from __future__ import annotations

import numpy as np

from glt_lightning.base import OptionError
from glt_lightning.sampling import permutation
from glt_lightning.tensors.space import Homes, RowSpace


def split_rows(
    selected: np.ndarray, space: RowSpace, homes: Homes, rank: int, key: int, *, force_even: bool
) -> np.ndarray:
    """int64 [n], ascending: the rows of one rank. selected: int64, ascending, each once.  key: of the order in which the rows
    of a host are dealt to its ranks; it depends on the host, not on the rank.

    force_even: the rows are put in the order (host, part, row) and cut evenly for the hosts, then for their ranks, so sizes
    differ by at most 1; not the order of rows alone, since part p lies on host p mod hosts, and half of the rows would be
    remote with more parts than hosts. Otherwise each host keeps its own rows.
    Raises `OptionError` for an even split where hosts have different numbers of ranks.
    """
    host, ranks = homes.host_of_rank[rank], homes.ranks_of(homes.host_of_rank[rank])
    hosts = homes.hosts_of(space, selected)
    if force_even:
        counts = [len(homes.ranks_of(h)) for h in range(homes.num_hosts)]
        if len(set(counts)) > 1:
            raise OptionError(
                f"split: force_even: hosts have {', '.join(map(str, counts))} ranks. Run as many on each host, or use "
                f"force_even=False."
            )
        in_order = selected[np.argsort(hosts, kind="stable")]
        mine = np.array_split(in_order, homes.num_hosts)[host]
    else:
        mine = selected[hosts == host]
    order = permutation(len(mine), key)
    share = np.array_split(mine[order], len(ranks))[ranks.index(rank)]
    share.sort()
    return share


def local_share(rows: np.ndarray, space: RowSpace, homes: Homes, rank: int) -> float:
    """Share of rows that lie on the host of a rank; 1 without rows."""
    hosts = homes.hosts_of(space, rows)
    return float((hosts == homes.host_of_rank[rank]).mean()) if len(rows) else 1.0
