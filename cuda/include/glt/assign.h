// Assigning nodes to parts and ranking them: the partitioner's loops over all edges of a graph. Conventions as in api.h.
// Edges come as rows: row i belongs to node first + i and lists neighbors[indptr[i] .. indptr[i + 1]).
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int64_t first;           // node of the first row
  int64_t num_rows;
  int64_t num_nodes;       // all ids are in [0, num_nodes)
  int32_t id_bytes;        // 4 or 8: width of `neighbors`
  int32_t reserved;
  const int64_t* indptr;   // [num_rows + 1], from 0
  const void* neighbors;   // ids
} glt_rows;

// One pass of label propagation under capacities. Node v of each row, in order, takes the label that most of its
// neighbours have, among those whose load stays within the capacity; it keeps its own at a tie, and of others the first
// in the row wins. A node whose own label is over its capacity changes to any label below its capacity: if no neighbour has
// one, and `everywhere`, to the one of least load in the first constraint (the lowest label at a tie). Neighbours without a
// label (-1) do not count.
// labels: int32 [num_nodes]; weights: int32 [num_nodes * C]; loads: int64 [num_labels * C], kept up to date;
// capacity: int64 [C]; threads: that count labels, which changes no result. *moved: nodes that changed their label.
// GLT_BAD_ID: detail = {row, neighbour}; GLT_BAD_ARG: detail = {row, label}.
GLT_API int32_t glt_assign_rows(const glt_rows* rows, int32_t* labels, int64_t num_labels, const int32_t* weights,
                                int32_t num_constraints, int64_t* loads, const int64_t* capacity, int32_t everywhere,
                                int32_t threads, int64_t* moved, int64_t* detail);

// A table of pairs and the number of edges of each. A slot is 16 bytes: uint64_t key, low label << 32 | high label, and int64_t
// number; both are 0 where it is free. size is a power of two, >= 2 and greater than limit.
typedef struct {
  int64_t size;
  int64_t limit;           // most pairs, >= 1
  int64_t used;
  int64_t forgotten;       // edges of the pairs that were dropped
  void* slots;             // [size]
} glt_pairs;

// Adds 1 to the pair (label of v, label of its neighbour) for each entry of the rows whose label is the greater one. labels:
// all >= 0. A new pair for which there is no room has the pairs with the fewest edges dropped before, all but limit / 2; at a
// tie, those of higher keys. GLT_BAD_ID: detail = {row, neighbour}.
GLT_API int32_t glt_count_pairs(const glt_rows* rows, const int32_t* labels, glt_pairs* pairs, int64_t* detail);

// The pairs as a symmetric graph of the labels: row l lists the greater labels that it is paired with, then the smaller ones,
// ascending each. indptr: int64 [num_labels + 1]; neighbors, numbers: int64 [2 * used], labels and numbers of edges.
// GLT_BAD_ARG: a label is not below num_labels, detail = {low, high}.
GLT_API int32_t glt_pair_rows(const glt_pairs* pairs, int64_t num_labels, int64_t* indptr, int64_t* neighbors,
                              int64_t* numbers, int64_t* detail);

// out[neighbour] += values[row] for each entry of the rows; integers, so that no order matters. values: int64
// [num_rows * width]; out: int64 [num_nodes * width]. threads: at least 1; each has a range of `out`. Rows whose values are 0 are
// not read. GLT_BAD_ID: detail = {row, neighbour}.
GLT_API int32_t glt_spread_rows(const glt_rows* rows, const int64_t* values, int32_t width, int64_t* out,
                                int32_t threads, int64_t* detail);

#ifdef __cplusplus
}
#endif
