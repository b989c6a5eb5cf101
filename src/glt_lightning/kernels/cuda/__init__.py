"""The kernels of the CUDA library on torch tensors, one file per kind of op.

**Each operation, on the host and on the device:**

* sample rows: blocks of 64 rows: row pointers, positions, neighbours, each a loop with prefetch. Picks by Floyd's
  algorithm [1] in a word, a bit set or a sorted list, by degree and fan-out; ``count_rows``, a scan by the caller,
  ``pick_rows``: 16 lanes a row (32 above fan-out 16 and for -1). Lanes draw in parallel, test whether their position
  was taken (``pick_lanes.h``), then count their rank
* random walks: 128 walks a thread step together: rows, entries, neighbours, each a loop with prefetch; a walk stops
  before a row that is not mapped here. Visits are counted in a small table for each root (``walk.cpp``;
  ``tests/reference/walks.py`` is normative); a thread a walk, by the same rules (``walk.h``): it goes on until the walk
  ends or stands at a node whose row the device does not have (``walk.cu``). Visits are counted by torch's stable
  ``sort``, in which equal nodes of a root stand together with the first visit first, and ``topk`` of (visits, first
  visit) as one number (``kernels/cuda/walks.py``)
* relabel: one open-addressing table with 8-byte slots (16 above 2^32 ids), ids in order; a table with 16-byte slots
  (id, lowest order): ids are inserted by compare-and-swap and atomic minimum, first occurrences are flagged, a scan by
  the caller numbers them
* gather: copy with prefetch, 1 to n threads; up to 32 lanes a row, each access as wide as addresses and width allow (1
  to 16 bytes); rows from 1 KiB on have two reads in flight before the first write. Lanes are aligned to lines of 128
  bytes, so that a quarter of a warp reads one line. Shards lie in device or in pinned, mapped memory
* gather and decode: as gather, for rows of float16, bfloat16 or int8: a plain loop over a row, compiled for the
  baseline and for AVX2 with F16C, chosen at run time; as gather, 4, 2 or 1 values a lane at a time, as the addresses
  allow; the arithmetic is the host's (``stored.h``)
* gather and sum: adds the rows of each destination's sources in the order of the edges, up to four rows at once in
  registers; compiled as above, without fused multiply-add, so that every processor gives the same bits; none:
  ``sampling.aggregate_first`` is for CPUs that sample
* rank of a member: one line of the set is read, the bits of one word are counted; prefetch; one thread an id
  (``rank.h``)
* column pointers, order by source: ``order.cpp``: one pass over the destinations; a stable counting sort of the
  sources, in slices that threads share; ``searchsorted`` and a stable ``sort`` of torch, whose radix sort is as good as
  one of our own
* user ids: inside the k-hop call; one thread a node
* route, stitch: for rows of several owners (``merge.cpp``): groups ids by owner; relabels the owners' picks in frontier
  order; the host routes; scans and scatters of torch stitch the picks (``kernels/cuda/merge.py``)
* k-hop batch: one native call; one native call that queues all hops (``khop.cu``) if the fan-outs bound the batch; else
  a loop over the kernels above (``kernels/cuda/khop_steps.py``), scans by ``torch.cumsum``
* induce: whole rows, against a bitmap of the members that also has their ranks; found edges go to memory of each thread
  first (``induce.cpp``); a thread takes 32 entries of a row, so that many threads share a high-degree node, and looks
  each source up in the relabel table: in one pass it sets a bit for each entry that is found, in a second it writes
  these to the places that a scan of the counts gives (``induce.cu``)
* aggregate: sum, mean, max, min of the rows along sorted edges, with weights or not, and the gradients: plain loops
  over a row, for the baseline and for AVX2, rows prefetched, 1 to n threads; float32, float64, and bfloat16 summed in
  float32. ``glt_lightning.loader.aggregation`` is a torch op; its reference is ``scatter_reduce``; the same loops, a
  thread for each value of the result (``aggregate.cu``), weights' gradients by 16 lanes an edge and head; no atomics,
  sums in the order of the edges, so the bits are the host's. The order by source comes from torch's stable ``sort``.
  Has not run on a GPU yet
* trained rows: ``embedding.cpp``: gradients of equal rows are summed in the order in which they come (a stable radix
  sort, then one pass); the steps of SGD, Adagrad, row-wise Adagrad and Adam write the touched rows alone. Float32, each
  result rounded, roots and quotients of four or eight values at once; threads share rows, never a row.
  ``tests/reference/embedding.py`` is normative; none: tables stay in host memory
* ReLU and dropout: one pass, vectorised; a number for each element from seed, row and column; none; torch's two ops

**Why the results equal those of the CPU:**

* **Draws** depend on (batch key, hop, edge type, user id, draw number) alone, by the same integer expressions
  everywhere (``random.h``, ``pick_count``, compiled for both).
* **Picks.** Before draw *i* of Floyd's algorithm, the taken positions are those of all earlier draws, and first + *k*
  for every earlier draw *k* that found its own taken (first = degree - fan-out). So draw *i* finds *q* taken if an
  earlier draw gave *q*, or if *q* = first + *k*, *k* < *i*, and *k* found its own taken. This depends on the draws
  only, so each lane computes it for itself. Picks are emitted in ascending position.
* **Excluded edges** are positions in rows, the same arrays for all kernels: ``glt_find_excluded``, on the CPU, finds
  them in the mapped files. A row is looked up by its gid (on the CPU behind a filter of 16 bits for each such row), and
  its degree is what is left; a pick moves past the positions before it (``excluded.h``).
* **Trees** of a disjoint batch: the key of a node in the table is tree * number of nodes + gid (8-byte slots while
  these numbers are below 2^32 - 1), and the tree is mixed into the key of the hop (``tree_key`` in ``random.h``). On a
  GPU such batches are made hop by hop (``glt_cuda_count_rows``, ``glt_cuda_pick_rows``, the relabel table with its
  slots of 16 bytes), where others are one call. A batch [15, 10] x 512 in a graph of 10 M edges takes 1.6 times as long
  for each edge as one that is not disjoint, whose table needs no keys.
* **Windows of time** are found by bisection in the times of a row, which ascend (``window.h``); the following steps see
  a row that begins and ends there: excluded positions are counted from its begin, and prefix sums from the sum before
  it. That costs 14 to 19 % of the edges per CPU second of a disjoint batch without times, in sampling alone. ``last``
  takes the end of the window and draws nothing.
* **Local ids.** A known id is in the table with its lid; a new one is inserted with (number of known ids + its
  position), and a slot holds the minimum. The minimum does not depend on the order of threads; the slot of an id does,
  but nothing reads it. Nothing is deleted from the table, so a probe visits each slot at most once; then it is an
  error, never an endless loop.
* **Order** of hops, edge types, rows and picks is the host's, because offsets come from scans, not from atomics. The
  only floating-point arithmetic of batches decodes attributes (exact for halves, a NaN becomes quiet; one product for
  int8) and, with ``sampling.aggregate_first``, adds rows in the order of the edges. Aggregation in layers adds and
  multiplies in one order everywhere, each result rounded (``times`` in ``aggregate_bodies.h``: nvcc would fuse a
  product with the sum behind it).

**Memory and waiting:**

* The caller owns outputs and workspace; optional outputs are null pointers. If the host's k-hop call returns
  ``GLT_GROW``, the caller enlarges its memory and calls again.
* Device, one call: memory for the largest possible batch. Per pick 8 bytes of workspace and 16 of ``edge_index`` (24 with
  edge rows), per node 16 bytes, per row of the largest frontier 16 (24), the table, and 8 bytes per pick of the largest
  step with a fan-out above 64. The workspace is free again when the call returns; outputs that are less than half full
  and above 1 MiB are copied into smaller ones.
* Device, hop by hop: room for rows x fan-out before each hop (the exact total is read if that is unbounded or above 16
  M). The relabel table has 16 bytes a slot, a power of two, at least twice the ids it will hold, and is rebuilt when a
  hop may outgrow it; 17 bytes an id while relabelling; 8 bytes a pick in ``spare`` for fan-outs above 64 only. There a
  row takes fan-out^2 steps, shared by 32 lanes: correct, not fast.
* Work is queued on the caller's stream. The host waits once a batch, in ``PendingBatch.result``, for an event behind
  the copy of sizes and error record to pinned memory. Hop by hop it waits once a hop, and once more in a hop with a
  fan-out of -1. Gather does not wait; its errors are read by ``CudaShards.check``, or with the sizes from a record that
  the caller passes.
* Host memory that the device reads in place is locked and mapped once by its owner (``kernels/cuda/graph.py``), in
  every context of the process. ``CudaShards`` takes rows at an address (``RowsAt``) beside tensors, so the shards of
  one array may lie in several memories. Each shard has its own stride: rows on the host may have padding (gpu.md), rows
  on the device have none.
* A ``hybrid`` graph is described with twice the parts (``GraphAddresses.split``): of each part the first, hottest rows,
  copied to the device, and the remaining rows on the host, whose row pointers count from the beginning of the same
  lists. Kernels need not know. ``graph/device_choice.py`` chooses the rows: one cut by expected accesses per byte
  through all parts. User ids of all nodes come first if they take at most half of the budget, then row pointers: of a
  graph like ogbn-products (524 MB, fan-outs [15, 10, 5]), 10 % of the bytes then serve 48 % of the accesses, 25 % serve
  57 %.
* **Errors** on the device: the first thread to meet a bad id, a damaged row or a full table claims the record; kernels
  skip bad items and touch nothing outside the arrays. So any one of several errors is reported, where the host reports
  the first.
"""
