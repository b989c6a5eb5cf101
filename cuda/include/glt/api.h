// The C ABI of the native library. No torch, no Python, no C++ types.
//
// Conventions: ids, offsets and counts are int64; the caller owns all memory; an output that is not wanted is a null pointer;
// every function returns a glt_status and throws nothing; fan-outs are -1 (all) or up to GLT_MAX_FANOUT. `detail`, if a function
// has it, is int64[4]: the place and the value of an error, or the size that is needed.
#pragma once
#include <stdint.h>

#if defined(_WIN32)
#define GLT_API __declspec(dllexport)
#else
#define GLT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define GLT_ABI_VERSION 32
#define GLT_MAX_HOPS 16
#define GLT_MAX_FANOUT 65536  // larger ones are mistakes, or meant as -1: a row takes up to fanout^2 steps on a device

typedef enum {
  GLT_OK = 0,
  GLT_GROW = 1,      // a workspace is too small; detail = {which, index, needed}
  GLT_BAD_ID = 2,    // an id is outside the graph or not local; detail = {position, id}
  GLT_BAD_ROW = 3,   // a row's pointers contradict the array they point into; detail = {edge_type, row, begin, end}
  GLT_BAD_ARG = 4,
  GLT_CUDA = 5,      // detail = {cudaError_t}
  GLT_NO_MEMORY = 6,
  GLT_NO_THREAD = 7, // a thread could not be started; detail = {errno}
  GLT_THROWN = 8     // any other C++ exception: a fault of this library
} glt_status;

// Rows of one edge type that an overlay has in place of those of their parts (graph/overlay.py). A graph with an overlay has P
// parts and then P more, those of the overlay: the row of gids[i] + moved, of part p, is row i + offset[p] of part P + p. Where
// overlays lie one over another, the last one is looked at first, whose P are the parts of all below it. CPU only.
typedef struct {
  int64_t num_rows;
  const int64_t* gids;             // [num_rows] ascending
  const int64_t* offset;           // [P]
  const int32_t* hint;             // [(num_nodes >> shift) + 2] of each bucket of gids, how many of `gids` lie below it; not
                                   // read where there are `blocks`
  int32_t shift, num_parts;        // P
  int64_t moved;                   // new nodes of later overlays that lie before these
  const void* below;               // the same of the overlay below it, or null
  const uint64_t* blocks;          // of glt_rank_build over gids, first and num_ids; null: few rows, which `hint` finds
  int64_t first, num_ids;
} glt_replaced;

// A typed graph whose parts are mapped into this process (or copied to this device).
// T node types, R edge types, P parts; segment s = type * P + part covers gids [bounds[s], bounds[s + 1]).
// Pointers of parts that are not local are null.
typedef struct {
  int32_t num_types, num_edge_types, num_parts;
  int32_t id_bytes;                // 4 or 8: width of indices and user_ids
  int32_t shift;                   // hint[gid >> shift] is the first segment that a gid of that bucket can lie in
  int32_t reserved;
  const int64_t* bounds;           // [T * P + 1]
  const int32_t* hint;             // [(num_nodes >> shift) + 1]
  const int32_t* src_type;         // [R]
  const int32_t* dst_type;         // [R]
  const uint64_t* key;             // [R] edge_type_key
  const int64_t* const* indptr;    // [R * P] -> int64 [rows + 1]
  const void* const* indices;      // [R * P] -> ids [edges], gids of sources, in canonical order per row
  const void* const* user_ids;     // [T * P] -> ids [rows]
  const int64_t* edge_base;        // [R * P] edge row of a part's first edge
  const int64_t* num_edges;        // [R * P]
  const int32_t* const* sums;      // [R * P] prefix sums of weights within each row, or null where entries weigh the same; null: all do
  const int64_t* const* times;     // [R * P] times of entries, ascending within each row, or null where they have none; null: none has
  const uint64_t* type_key;        // [T] key of a node type's name; read with all_ids
  const void* const* all_ids;      // [T] -> user ids of all nodes of a type, also of parts that are not local. Neighbours are then
                                   // drawn by LABOR, without replacement; null: each row draws on its own
  const int64_t* num_ids;          // [T] number of entries of all_ids: the nodes behind those have theirs in more_ids
  const void* const* more_ids;     // [T] -> user ids; null: all_ids has all
  const glt_replaced* replaced;    // [R], or null: no rows are
  const int64_t* source_shift;     // [R] what is added to the entries of `indices` to get gids, or null: nothing
} glt_graph;

// Entries of rows of one edge type that sampling ignores, as if they were not stored; glt_find_excluded finds them.
typedef struct {
  int64_t num_rows;                // rows with excluded entries
  const int64_t* gids;             // [num_rows] destination nodes, ascending, each once
  const int64_t* begin;            // [num_rows + 1] where the positions of each row begin
  const uint32_t* positions;       // [begin[num_rows]] in the row, ascending
} glt_excluded;

// The trees of a disjoint batch: in each tree nodes have their own numbers and draws. Entries of rows with times are drawn in a
// tree only if since <= time <= until.
typedef struct {
  int64_t num_trees;
  const int32_t* const* of;        // glt_khop: [T] -> the tree of each seed; for rows: [1] -> that of each row
  const int64_t* since;            // [num_trees], null: no lower bound
  const int64_t* until;            // [num_trees], null: no upper bound
  int32_t last;                    // pick the latest entries of rows with times, instead of random ones
  int32_t reserved;
} glt_trees;

// Growable memory of the k-hop sampler. All lists are per type or per edge type; capacities are in entries.
typedef struct {
  int64_t table_cap;               // slots of the relabel table
  void* table;                     // 8 bytes a slot when num_nodes (with trees: num_nodes * num_trees) < 2^32 - 1, else 16
  int64_t* table_base;             // [1] in: 0 for a table with any content, else the value that the previous call left
  int64_t scratch_cap;             // addresses of one hop's picks
  uint64_t* scratch;
  const int64_t* node_cap;         // [T]
  int64_t* const* gid;             // [T] -> [node_cap] gids by lid
  int64_t* const* uid;             // [T] -> [node_cap] user ids by lid
  int32_t* const* tree;            // [T] -> [node_cap] trees by lid; where the batch has trees
  const int64_t* edge_cap;         // [R]
  int32_t* const* src;             // [R] -> [edge_cap] lid of the neighbour
  int32_t* const* dst;             // [R] -> [edge_cap] lid of the node it was drawn for
  int64_t* const* edge_row;        // [R] -> [edge_cap], entries null when edge rows are not wanted
  int32_t edge_id_bytes, reserved; // 4 or 8: width of the edge ids stored, and of those returned
  const void* const* edge_ids;     // [R * P] -> edge ids [edges] by position, read where e_id is wanted
  void* const* e_id;               // [R] -> [edge_cap], entries null when edge ids are not wanted
  int64_t* nodes_per_hop;          // [T * (H + 1)] out: nodes first seen in each hop, seeds first
  int64_t* edges_per_hop;          // [R * H] out
} glt_workspace;

GLT_API int32_t glt_abi_version(void);

// One whole batch: seeds, then H hops over all edge types; rows of every visited node must be local.
// Local ids of a type: its seeds first (one row per seed, duplicates kept), then by first occurrence (hop, edge type, frontier
// lid, pick). seeds: [T] -> gids [num_seeds[t]]. excluded: [R], null where nothing is. trees: null where the batch has none.
// fanouts: [H * R], -1 = all. GLT_GROW detail[0]: 0 table, 1 scratch, 2 nodes of type detail[1], 3 edges of edge type detail[1].
GLT_API int32_t glt_khop(const glt_graph* graph, const int64_t* const* seeds, const int64_t* num_seeds, int32_t num_hops,
                         const int32_t* fanouts, uint64_t batch_key, int32_t replace, int32_t threads,
                         const glt_excluded* excluded, const glt_trees* trees, const glt_workspace* ws, int64_t* detail);

// One hop of one edge type for F rows, all local, in two steps: counts [F], the number of neighbours that each row yields; then n
// of all picks in row order, from `first` on: neighbours (gids) [n] and edge rows [n] or null. Nothing is allocated beyond the
// positions of one row, so that a caller can take a row of any length in pieces. excluded, trees: null without any; the same in
// both steps.
GLT_API int32_t glt_count_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows, int32_t fanout,
                               int32_t replace, const glt_excluded* excluded, const glt_trees* trees, int64_t* counts,
                               int64_t* detail);
GLT_API int32_t glt_pick_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows, int32_t fanout,
                              uint64_t batch_key, int32_t hop, int32_t replace, int32_t threads, const glt_excluded* excluded,
                              const glt_trees* trees, const int64_t* counts, int64_t first, int64_t n, int64_t* neighbors, int64_t* edge_rows,
                              int64_t* detail);

// found [n]: 1 where the edge type has an edge from src[i] to dst[i], else 0. All dst are local nodes; src may be anywhere.
GLT_API int32_t glt_has_edges(const glt_graph* graph, int32_t edge_type, const int64_t* dst, const int64_t* src, int64_t n,
                              int32_t threads, uint8_t* found, int64_t* detail);

// The entries of rows gids [num_rows], all local nodes, whose source is a member of a set (glt_rank_build, of ids from `first` on);
// those of weight 0 are left out. Of the first rows, as many as fit: counts [num_rows], then of each entry the rank of its source
// in the set, ranks [cap], and edge_rows [cap]; done [2]: rows and entries written. GLT_GROW detail[2]: the cap that the first row
// needs. GLT_BAD_ARG detail = {position, gid, degree}: a row of more than most_degree entries.
GLT_API int32_t glt_induce(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows,
                           const uint64_t* members, int64_t first, int64_t num_ids, int64_t most_degree, int32_t threads,
                           int64_t cap, int64_t* counts, int32_t* ranks, int64_t* edge_rows, int64_t* done, int64_t* detail);

// The rule of walks: step j follows edge_types[j % num_types], from a destination to the source of one of the edges into it,
// drawn uniformly or, if the graph has sums, by weight. Before each step but the first that begins the edge types anew, a walk
// returns to its root with probability restart / 2^32, or ends there.
typedef struct {
  const int32_t* edge_types;  // [num_types]
  int32_t num_types, length;  // length: number of steps
  uint64_t restart;
  int32_t ends, reserved;     // ends: 1 to end instead of returning to the root
} glt_walk_rule;

// Computes the streams of draws of walks [num_roots * walks], root after root. user_ids [num_roots]: user ids of the roots.
// trees [num_roots]: their trees in a disjoint batch, or null.  key: key of the hop.
GLT_API int32_t glt_walk_streams(const int64_t* user_ids, const int32_t* trees, int64_t num_roots, int32_t walks, uint64_t key,
                                 uint64_t* streams, int64_t* detail);

// Continues the walks `which` [n] (null: 0 to n - 1) until they end or reach a node of a part that is not local. For each walk:
// roots; streams; at: its current node; step: the number of steps taken; trace [length]: the node that each step led to. A walk
// that has ended has step = `length`; it is at -1 if it took fewer steps, and the trace is unchanged from there on.
// excluded [num_edge_types] or null: entries of local rows that walks ignore, as if they were not stored.
GLT_API int32_t glt_walk(const glt_graph* graph, const glt_walk_rule* rule, const glt_excluded* excluded, const int64_t* roots,
                         const uint64_t* streams, const int64_t* which, int64_t n, int32_t threads, int64_t* at, int32_t* step,
                         int64_t* trace, int64_t* detail);

// Finds the nodes that the walks of each root visit most often at the ends of each `every` steps: of trace [num_roots, walks,
// length] at most `most` distinct ids >= 0 other than the root's (roots [num_roots]; null: any id), with the most visits first,
// and of equal ones the first visited first. counts [num_roots]; ids, visits [num_roots, most].
GLT_API int32_t glt_count_visits(const int64_t* trace, int64_t num_roots, int32_t walks, int32_t length, int32_t every,
                                 const int64_t* roots, int64_t most, int32_t threads, int64_t* counts, int64_t* ids, int64_t* visits,
                                 int64_t* detail);

// Finds the arrays of a glt_excluded: all positions of src[i] in the row of dst[i], for n pairs that ascend by (dst, src), each
// once. All dst are local nodes; src may be anywhere. gids [n], begin [n + 1], positions [cap]; GLT_GROW detail[2]: the cap that
// is needed.
GLT_API int32_t glt_find_excluded(const glt_graph* graph, int32_t edge_type, const int64_t* dst, const int64_t* src, int64_t n,
                                  int64_t* gids, int64_t* begin, uint32_t* positions, int64_t cap, int64_t* num_rows,
                                  int64_t* detail);

// Gives ids [n] their local ids in first-occurrence order, continuing a list: unique holds *num_unique ids already and
// room for cap. The table must hold >= 3/2 of the final unique count, rounded up to a power of two, and is rebuilt by
// each call that sets `fresh`. wide: 16-byte slots.
GLT_API int32_t glt_relabel(const int64_t* ids, int64_t n, void* table, int64_t table_cap, int32_t wide, int32_t fresh,
                            int64_t* unique, int64_t* num_unique, int64_t cap, int32_t* lids, int64_t* detail);

// out[i] = row (ids[i]) of an array stacked from P shards: bounds [P + 1], shards [P] -> row_bytes each row.
GLT_API int32_t glt_gather(const void* const* shards, const int64_t* bounds, int32_t num_shards, int64_t row_bytes,
                           const int64_t* ids, int64_t n, void* out, int32_t threads, int64_t* detail);

// Copies n runs of consecutive rows, row_bytes each: count[i] rows from row begin[i] of `rows` [num_rows] to row at[i] of `out`
// [num_out]. GLT_BAD_ARG: a run does not lie in both; detail = {its number}.
GLT_API int32_t glt_copy_runs(const void* rows, int64_t num_rows, int64_t row_bytes, const int64_t* begin,
                              const int64_t* count, const int64_t* at, int64_t n, void* out, int64_t num_out,
                              int64_t* detail);

// place[i]: the first of the entries begin[i] to end[i], which are sorted by (time, user id of the source), that is greater than
// (time[i], id[i]); end[i] if none is. sources: entries of `bytes` each, gids less `shift`; shards and bounds as for glt_gather.
// ids: user ids by gid, as wide.  times: int64, or shards null: entries have none, and time is not read.
typedef struct {
  const void* const* shards;
  const int64_t* bounds;
  int32_t num_shards, bytes;
} glt_shards;

// GLT_BAD_ID: a source is no node; GLT_BAD_ARG: a row does not lie in one shard that is here. detail = {i, ...}
GLT_API int32_t glt_search(const glt_shards* sources, int64_t shift, const glt_shards* ids, const glt_shards* times,
                           const int64_t* begin, const int64_t* end, const int64_t* id, const int64_t* time, int64_t n,
                           int64_t* place, int64_t* detail);

// Routes ids [n] to their owners: owner [n], the ids grouped by owner in their order (wire_bytes each, group o at begin[o] of
// [O + 1]), and place [n]: the id itself if owner is 0, else first_place[owner] + position in its group. bounds [shards + 1].
// cached [n] or null: ids of other owners with a rank >= 0 there are in the cache, which counts as the last owner, O - 1, without
// shards: their ranks are grouped instead of the ids, and their place is first_place[O - 1] + rank.
GLT_API int32_t glt_route(const int64_t* ids, int64_t n, const int64_t* bounds, const int32_t* owner_of_shard,
                          int32_t num_shards, int32_t num_owners, const int64_t* first_place, const int32_t* cached,
                          int32_t wire_bytes, int32_t* owner, int64_t* begin, void* grouped, int64_t* place,
                          int64_t* detail);

// A set of ids out of [first, first + num_ids), each with its rank in ascending order. blocks: glt_rank_words words,
// aligned to 32 bytes; built from members [n], ascending, each once; found [n] -> rank or -1, also outside the range.
GLT_API int64_t glt_rank_words(int64_t num_ids);
GLT_API int32_t glt_rank_build(const int64_t* members, int64_t n, int64_t first, int64_t num_ids, uint64_t* blocks,
                               int64_t* detail);
GLT_API int32_t glt_rank_find(const uint64_t* blocks, int64_t first, int64_t num_ids, const int64_t* ids, int64_t n,
                              int32_t* rank);

// Clears a relabel table for ids below num_ids (slots as in glt_workspace) and enters lists [num_lists] -> [counts]:
// an id's local id is its first position in its list.
GLT_API int32_t glt_table_fill(void* table, int64_t table_cap, int64_t num_ids, const int64_t* const* lists,
                               const int64_t* counts, int32_t num_lists, int64_t* detail);

// The picks of one owner for its rows of an edge type: arrays of 4- or 8-byte integers.
typedef struct {
  int32_t bytes, reserved;
  int64_t num_rows, num_entries;
  const void* counts;              // [num_rows]
  const void* neighbors;           // [num_entries] gids
  const void* edge_rows;           // [num_entries] or null
} glt_picks;

// One edge type of one hop of a batch: F frontier rows whose picks come from num_owners owners, each in frontier order.
typedef struct {
  int32_t num_owners, reserved;
  const glt_picks* picks;          // [num_owners]
  const int32_t* owner;            // [F], null when all rows are of owner 0
  int64_t num_rows, first_lid;     // F, local id of the first row
  int64_t first_gid, num_gids;     // range of the neighbours' type
  int64_t num_ids, table_cap;      // as in glt_table_fill; room for all picks is the caller's duty
  void* table;
  int64_t node_cap, edge_cap;
  int64_t* gids;                   // [node_cap] gids by lid of the neighbours' type
  int32_t *src, *dst;              // [edge_cap]
  int64_t* edge_rows;              // [edge_cap] or null
} glt_merge_call;

// Relabels the picks in frontier order and appends them; the counts change only on success. After GLT_GROW the table must be
// filled again. GLT_BAD_ARG: an answer does not fit its request.
GLT_API int32_t glt_merge(const glt_merge_call* call, int64_t* num_nodes, int64_t* num_edges, int64_t* detail);

// Converts int32 [n] to int64 [n].
GLT_API int32_t glt_widen(const int32_t* in, int64_t n, int64_t* out);

#ifdef __cplusplus
}
#endif
