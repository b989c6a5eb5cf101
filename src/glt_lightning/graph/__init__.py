"""A partition folder in memory: its manifest, mapped arrays, and the tiers and caches that hold its rows.

A folder (``manifest.py`` has the format) has one manifest and a folder per part. `LocalPartition` opens some of its parts:
topology as CSC by destination, attributes as rows, all memory-mapped, so that processes of a host share pages. A folder
of another build, a truncated file or a manifest that does not match is refused in `Manifest` and `LocalPartition.open`.

One rule chooses the rows that also lie in faster memory than the mapped files (``cache_choice.py``): candidates are
ranked by the accesses that a byte saves. The kinds of faster memory are

* the **host tier**: hot rows of mapped parts, kept in memory (``host_tier.py``);
* the **remote cache**: rows of other hosts' parts, copied into shared memory (``remote_cache.py``,
  ``topology_cache.py``);
* the **device tier**: rows and topology in the memory of a GPU (``device_store.py``, ``device_choice.py``).

Runs in sampler processes, graph servers and ranks. Needs numpy alone, except for the device tier.

Example:
    >>> from glt_lightning.graph import LocalPartition
    >>> partition = LocalPartition.open("parts")
    >>> len(partition.split("train").gids)
    6
    >>> partition.close()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.graph.arrays import (
        check_header as check_header,
        open_array as open_array,
        read_npy_header as read_npy_header,
        verify_array as verify_array,
    )
    from glt_lightning.graph.control_groups import usable_cores as usable_cores
    from glt_lightning.graph.device_choice import DeviceIndex as DeviceIndex
    from glt_lightning.graph.device_store import DeviceStore as DeviceStore
    from glt_lightning.graph.drawn_rows import (
        OwnerDraws as OwnerDraws,
        RowDraws as RowDraws,
        probed as probed,
    )
    from glt_lightning.graph.edge_ends import (
        ENDS as ENDS,
        EdgeEnds as EdgeEnds,
        stored_rows as stored_rows,
    )
    from glt_lightning.graph.graph import (
        EDGE_SPLIT_ARRAYS as EDGE_SPLIT_ARRAYS,
        IN_TRAINING as IN_TRAINING,
        AnyGraph as AnyGraph,
        EdgeSplit as EdgeSplit,
        Seeds as Seeds,
        among as among,
        checked_ids as checked_ids,
        choose_seeds as choose_seeds,
        gids_by_user_id as gids_by_user_id,
        refuse_integer_mask as refuse_integer_mask,
        seeds_hash as seeds_hash,
    )
    from glt_lightning.graph.host_memory import available_memory as available_memory
    from glt_lightning.graph.host_tier import HostTier as HostTier
    from glt_lightning.graph.local_partition import (
        LocalPartition as LocalPartition,
        difference as difference,
        files_hash as files_hash,
        partition_id as partition_id,
    )
    from glt_lightning.graph.manifest import (
        MANIFEST as MANIFEST,
        ArrayEntry as ArrayEntry,
        EdgeColumns as EdgeColumns,
        EdgeLabelEntry as EdgeLabelEntry,
        EdgeSplitEntry as EdgeSplitEntry,
        EncodingEntry as EncodingEntry,
        Manifest as Manifest,
        SplitEntry as SplitEntry,
        attr_key as attr_key,
        cum_name as cum_name,
        deleted_path as deleted_path,
        edge_path as edge_path,
        edge_split_key as edge_split_key,
        edge_split_path as edge_split_path,
        gid_path as gid_path,
        hot_path as hot_path,
        node_path as node_path,
        node_times_path as node_times_path,
        options_hash as options_hash,
        split_path as split_path,
    )
    from glt_lightning.graph.manifest_checks import (
        CHUNK_BYTES as CHUNK_BYTES,
        MOST_CLASSES as MOST_CLASSES,
    )
    from glt_lightning.graph.other_edges import (
        OtherEdges as OtherEdges,
        bare_view as bare_view,
    )
    from glt_lightning.graph.overlay import (
        GrownNumbers as GrownNumbers,
        GrownPartition as GrownPartition,
        Overlay as Overlay,
        OverlayFacts as OverlayFacts,
    )
    from glt_lightning.graph.placement import (
        BatchArrays as BatchArrays,
        require_readable as require_readable,
    )
    from glt_lightning.graph.regular_file import (
        open_regular as open_regular,
        parse_json as parse_json,
    )
    from glt_lightning.graph.remote_cache import (
        CacheChoice as CacheChoice,
        RemoteCache as RemoteCache,
    )
    from glt_lightning.graph.row_order import (
        TIMES as TIMES,
        RowOrder as RowOrder,
    )
    from glt_lightning.graph.shared_arrays import (
        Shapes as Shapes,
        SharedArrays as SharedArrays,
    )
    from glt_lightning.graph.topology_cache import (
        NeighborLists as NeighborLists,
        TopologyCache as TopologyCache,
    )
    from glt_lightning.graph.uva import (
        copy_for_uva as copy_for_uva,
        open_uva as open_uva,
    )


__all__ = ["LocalPartition", "Manifest", "Seeds"]

__getattr__, __dir__ = lazy_names(__name__)
