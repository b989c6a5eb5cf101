// The C ABI of the device library. Conventions as in api.h, and:
//
// All pointers are to memory that the device reads (its own, or pinned and mapped), but for `graph`, `detail` and those of
// the functions without a stream. A graph is described on the host; its arrays and tables of pointers are the device's.
// Nothing is allocated, nothing waits, work goes to `stream` (a cudaStream_t) of the current device alone; memory must
// live until the stream has come past the work.
// Errors that are known at once are returned: GLT_BAD_ARG, GLT_CUDA. Those that kernels find are written to `error`: int64 [5], a
// status and its detail, zeroed by the caller. The first thread to fail claims it; of several errors any one. Bad items are left
// out and no memory outside the arrays is touched, so the caller may read `error` late, with the sizes.
#pragma once
#include <glt/aggregate.h>
#include <glt/api.h>
#include <glt/decode.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLT_SPARE_FANOUT 64  // fan-outs above this need memory in `spare`

// Counts the devices that can be used. GLT_CUDA without a driver, or with one that is too old.
GLT_API int32_t glt_cuda_device_count(int32_t* count, int64_t* detail);

// The CUDA version that the kernels were built with, and the newest that the driver supports (0: no driver), as 1000 major + 10
// minor.
GLT_API int32_t glt_cuda_versions(int32_t* built, int32_t* driver, int64_t* detail);

// The compute capability of the current device, as 10 major + minor. GLT_CUDA if no kernel was built for it.
GLT_API int32_t glt_cuda_capability(int32_t* capability, int64_t* detail);

// The text of a cudaError_t, which is static.
GLT_API const char* glt_cuda_error_text(int32_t error);

// Lets the current device, and all others, read host memory: pages [address, address + nbytes), which are locked until
// they are unregistered. The pages must be writable, and registered once. GLT_CUDA also if they cannot be locked.
GLT_API int32_t glt_cuda_host_register(void* address, int64_t nbytes, void** device_address, int64_t* detail);
GLT_API int32_t glt_cuda_host_unregister(void* address, int64_t* detail);

// Counts the neighbours that the rows of F nodes yield: counts [F]. excluded, trees: null without any; structs on the host (with
// the table `of`), their arrays on the device. error: GLT_BAD_ID {position, id}, GLT_BAD_ROW as in api.h.
GLT_API int32_t glt_cuda_count_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows,
                                    int32_t fanout, int32_t replace, const glt_excluded* excluded, const glt_trees* trees,
                                    int64_t* counts, int64_t* error, int64_t* detail, void* stream);

// The picks of the same F rows. uids [F]: their user ids. offsets [F + 1]: exclusive scan of the counts.
// Out, each [offsets[F]]: neighbors (gids; -1 for a damaged one), and unless null dst (first_lid + row), edge_rows.
// spare: null, or for a fan-out above GLT_SPARE_FANOUT 3 * offsets[F] words. There a row takes fanout^2 steps.
GLT_API int32_t glt_cuda_pick_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, const int64_t* uids,
                                   int64_t num_rows, int32_t fanout, uint64_t batch_key, int32_t hop, int32_t replace,
                                   const glt_excluded* excluded, const glt_trees* trees, const int64_t* offsets, int64_t first_lid,
                                   int64_t* neighbors, int64_t* dst, int64_t* edge_rows, uint32_t* spare, int64_t* error, int64_t* detail, void* stream);

// uids[i] = user id of gids[i], for i in [begin, end) below *count. error: GLT_BAD_ID {i, id}.
GLT_API int32_t glt_cuda_user_ids(const glt_graph* graph, int32_t type, const int64_t* gids, int64_t begin, int64_t end,
                                  const int64_t* count, int64_t* uids, int64_t* error, int64_t* detail, void* stream);

// Relabelling: glt_relabel in three steps, with an inclusive scan by the caller before the last.
// The table has num_slots slots of 16 bytes, a power of two, at least twice the ids it will hold. It serves any number
// of lists with different ids (one for each node type). Bad ids: GLT_BAD_ID {position, id}; table full: GLT_GROW {0}.
//
// 1. Empties the table if `fresh`, then enters known ids [n] with the lids 0 .. n - 1; of equal ones the first counts.
GLT_API int32_t glt_cuda_relabel_known(const int64_t* known, int64_t n, int32_t fresh, void* table, int64_t num_slots,
                                       int64_t* error, int64_t* detail, void* stream);

// 2. Enters ids[i] for i in [0, n) below *count, after the *num_unique ids of their list: slot [n], the slot of each id; is_new
// [n], 1 for the first occurrence of an id that the list lacks.
GLT_API int32_t glt_cuda_relabel_find(const int64_t* ids, int64_t n, const int64_t* count, const int64_t* num_unique,
                                      void* table, int64_t num_slots, int64_t* slot, uint8_t* is_new, int64_t* error,
                                      int64_t* detail, void* stream);

// 3. rank [n]: inclusive scan of is_new. Appends the new ids to unique (room for cap; else GLT_GROW {2}), gives all their
// lids [n], -1 for bad ones and those not below *count, and counts *num_unique up.
GLT_API int32_t glt_cuda_relabel_number(const int64_t* ids, int64_t n, const int64_t* slot, const uint8_t* is_new,
                                        const int64_t* rank, void* table, int64_t num_slots, int64_t* unique, int64_t cap,
                                        int64_t* num_unique, int64_t* lids, int64_t* error, int64_t* detail,
                                        void* stream);

// The stored edges of F rows whose sources are in a relabelling table, in three steps: rows (and their entries) in their order. A
// source is in the table as bases[row] + gid (bases null: as its gid). Edges of weight 0 are left out if the graph has weights.
//
// 1. pieces [F]: the number of pieces in which a row is read. error: GLT_BAD_ID {position, id}, GLT_BAD_ROW as in api.h,
// GLT_BAD_ARG {position, id, entries, edge type} for a row of more than most_degree.
GLT_API int32_t glt_cuda_induce_pieces(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows,
                                       int64_t most_degree, int64_t* pieces, int64_t* error, int64_t* detail, void* stream);

// 2. first [F + 1]: exclusive scan of the pieces, num_pieces its end. wanted, counts: for each piece the entries that are wanted,
// a bit each, and their number.
GLT_API int32_t glt_cuda_induce_find(const glt_graph* graph, int32_t edge_type, const int64_t* gids, const int64_t* bases,
                                     const int64_t* first, int64_t num_rows, int64_t num_pieces, const void* table, int64_t num_slots,
                                     uint32_t* wanted, int64_t* counts, int64_t* detail, void* stream);

// 3. to [num_pieces]: exclusive scan of the counts. src, dst, edge_rows: for each edge the lid of its source in the table, its
// row and its edge row.
GLT_API int32_t glt_cuda_induce_write(const glt_graph* graph, int32_t edge_type, const int64_t* gids, const int64_t* bases,
                                      const int64_t* first, int64_t num_rows, int64_t num_pieces, const void* table, int64_t num_slots,
                                      const uint32_t* wanted, const int64_t* to, int64_t* src, int64_t* dst, int64_t* edge_rows,
                                      int64_t* detail, void* stream);

// Works as glt_walk_streams.
GLT_API int32_t glt_cuda_walk_streams(const int64_t* user_ids, const int32_t* trees, int64_t num_roots, int32_t walks, uint64_t key,
                                      uint64_t* streams, int64_t* detail, void* stream);

// Works as glt_walk, on all n walks; `rule` is on the host, its edge types and all of `excluded` on the device. error: GLT_BAD_ID
// {walk, id}, GLT_BAD_ROW as in api.h, GLT_BAD_ARG {edge type}; a walk that meets one ends there.
GLT_API int32_t glt_cuda_walk(const glt_graph* graph, const glt_walk_rule* rule, const glt_excluded* excluded, const int64_t* roots,
                              const uint64_t* streams, int64_t n, int64_t* at, int32_t* step, int64_t* trace, int64_t* error,
                              int64_t* detail, void* stream);

// A k-hop batch as one call. This struct and its arrays are on the host. T node types, R edge types, H hops as in api.h.
typedef struct {
  int32_t num_hops, replace, with_edge, reserved;
  int64_t max_picks;               // most picks of the whole batch for which memory may be planned
  const int64_t* num_seeds;        // [T]
  const int32_t* fanouts;          // [H * R]
  const int32_t *src_type, *dst_type;  // [R]
  const int64_t* type_sizes;       // [T]
} glt_khop_shape;

// Bounds the size of such a batch: nodes [T], edges [R], and the bytes of its workspace; -1 if max_picks is not enough, as always
// with a fan-out of -1 for rows, or for 2^32 - 1 nodes or more: then use the ops above.
GLT_API int32_t glt_cuda_khop_room(const glt_graph* graph, const glt_khop_shape* shape, int64_t* nodes, int64_t* edges,
                                   int64_t* workspace_bytes, int64_t* detail);

// Queues the batch; results as glt_khop. Tables of pointers on the host: seeds [T], gid and uid [T] -> [nodes], edge_index [R] ->
// [2 * edges], edge_row [R] -> [edges], not read without with_edge. Of an edge type with E edges, all hops in order, the
// first 2 * E of edge_index are written: source lids, then destination lids; -1 for a damaged source.
// sizes: [5 + (H + 2) * T + (H + 1) * R] an error as above, the nodes by type (none, with the seeds, after each hop), the
// edges by edge type (none, after each hop). A count that a hop did not change may be 0: take the highest before it.
// workspace: aligned to 256 bytes, used by this call only. excluded: [R] as above, null if nothing is excluded.
GLT_API int32_t glt_cuda_khop(const glt_graph* graph, const glt_khop_shape* shape, const int64_t* const* seeds, uint64_t batch_key,
                              const glt_excluded* excluded, void* workspace, int64_t workspace_bytes, int64_t* const* gid, int64_t* const* uid,
                              int64_t* const* edge_index, int64_t* const* edge_row, int64_t* sizes, int64_t* detail,
                              void* stream);

// out[i] = row (ids[i]) of an array stacked from P shards: bounds [P + 1], shards [P] -> row_bytes each row, the next one
// strides [P] bytes behind it (null: row_bytes); a shard may lie in device or in pinned, mapped memory. Any width and
// alignment; 16 bytes at a time where both allow.
// error: GLT_BAD_ID {position, id}; that row of `out` is left as it was.
GLT_API int32_t glt_cuda_gather(const void* const* shards, const int64_t* strides, const int64_t* bounds, int32_t num_shards,
                                int64_t row_bytes, const int64_t* ids, int64_t n, void* out, int64_t* error,
                                int64_t* detail, void* stream);

// As glt_cuda_gather, for rows of `values` numbers that are stored as `encoding` says: out [n * values] float32, decoded.
// Rows of halves begin at even addresses.
GLT_API int32_t glt_cuda_gather_decode(const void* const* shards, const int64_t* strides, const int64_t* bounds,
                                       int32_t num_shards, int32_t encoding, int64_t values, const int64_t* ids, int64_t n,
                                       float* out, int64_t* error, int64_t* detail, void* stream);

// Works as glt_rank_find.
GLT_API int32_t glt_cuda_rank_find(const uint64_t* blocks, int64_t first, int64_t num_ids, const int64_t* ids, int64_t n,
                                   int32_t* rank, int64_t* detail, void* stream);

// out[neighbour] += values[row] for each entry of the rows; integers, so that no order matters. indptr [num_rows + 1],
// neighbors (id_bytes wide), values [num_rows * width], out [num_nodes * width]. error: GLT_BAD_ID {row, neighbour}.
GLT_API int32_t glt_cuda_spread_rows(const int64_t* indptr, const void* neighbors, int32_t id_bytes, int64_t num_rows,
                                     int64_t num_nodes, const int64_t* values, int32_t width, int64_t* out, int64_t* error,
                                     int64_t* detail, void* stream);

// As in aggregate.h, with the same sums in the same order; `edges` is on the host, its arrays are the device's. error: GLT_BAD_ID
// {edge, source}, GLT_BAD_ROW {0, row, begin, end}; then, and where `error` is not zero at first, nothing is written.
GLT_API int32_t glt_cuda_aggregate(const glt_edges* edges, int32_t kind, const void* x, const void* weights, void* out,
                                   int64_t* error, int64_t* detail, void* stream);

// The edges in the order of their sources, those of one source in their own: indptr [S + 1], dst [E], edge [E] the position of
// each. Workspace in the type of the sums (float32; float64 for float64): for means D, for extremes D * W, else none.
GLT_API int32_t glt_cuda_aggregate_grad(const glt_edges* edges, const int64_t* indptr, const int64_t* dst,
                                        const int64_t* edge, int32_t kind, const void* grad, const void* weights,
                                        const void* x, const void* out, void* workspace, void* grad_x, int64_t* error,
                                        int64_t* detail, void* stream);

// dst [E]: the destination of each edge; edges without a destination get 0.
GLT_API int32_t glt_cuda_aggregate_weights_grad(const glt_edges* edges, const int64_t* dst, int32_t kind, const void* grad,
                                                const void* x, void* grad_weights, int64_t* error, int64_t* detail,
                                                void* stream);

#ifdef __cplusplus
}
#endif
