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

// Edges between labels. A pair of different labels is a key, uint64_t low << 32 | high. While edges are counted, pairs are dealt out
// over 2^bits buckets, each pair to one of them, in which it is a record, of this library's own making.
typedef struct {
  int32_t label_bits;    // 1 to 31: all labels are in [0, 2^label_bits)
  int32_t bits;          // 0 to 16, at most 2 * label_bits
  int32_t record_bytes;  // 8; 4 if 2 * label_bits - bits <= 32
  int32_t reserved;
} glt_pairs;

// Lists the pair of (v, its neighbour) for each entry of the rows whose neighbour is greater than v, bucket by bucket. labels: of
// all nodes; records, work: [entries of the rows] each; sizes: int64 [2^bits], records of each bucket; threads: change no result
// but the order within a bucket. GLT_BAD_ID: detail = {row, neighbour}.
GLT_API int32_t glt_list_pairs(const glt_rows* rows, const int32_t* labels, const glt_pairs* pairs, int32_t threads,
                               void* records, uint64_t* work, int64_t* sizes, int64_t* detail);

// Counts equal records of the buckets from first_bucket on: out_keys, out_numbers: the different pairs, and how many there were of
// each; *found: how many pairs. Left out are pairs of less than *number edges, and of those of just as many the ones whose key is
// greater than *key. first: int64 [num_buckets + 1], first record of each bucket; records are overwritten. out_keys, out_numbers:
// [first[num_buckets]].
// GLT_BAD_ARG: a bucket of 2^31 records or more, detail = {bucket, records}.
GLT_API int32_t glt_sum_pairs(const glt_pairs* pairs, void* records, int64_t first_bucket, const int64_t* first,
                              int64_t num_buckets, const int64_t* number, const uint64_t* key, int32_t threads,
                              uint64_t* out_keys, int64_t* out_numbers, int64_t* found, int64_t* detail);

// Moves the `most` pairs with the most edges, at a tie those with the lowest keys, to the front of both arrays, [n] with n >= most
// >= 1; the others are lost. *number, *key: of the last of them.
GLT_API int32_t glt_most_pairs(uint64_t* keys, int64_t* numbers, int64_t n, int64_t most, int64_t* number, uint64_t* key,
                               int64_t* detail);

// Pairs as a symmetric graph of the labels: row l lists the greater labels that it is paired with, then the smaller ones,
// ascending each. keys: different ones; counts: int64 [n], their numbers of edges. indptr: int64 [num_labels + 1]; neighbors,
// numbers: int64 [2 n], labels and numbers of edges. GLT_BAD_ARG: no pair of labels below num_labels, detail = {low, high}.
GLT_API int32_t glt_pair_graph(const uint64_t* keys, const int64_t* counts, int64_t n, int64_t num_labels, int64_t* indptr,
                               int64_t* neighbors, int64_t* numbers, int64_t* detail);

// out[neighbour] += values[row] for each entry of the rows; integers, so that no order matters. values: int64
// [num_rows * width]; out: int64 [num_nodes * width]. threads: at least 1; each has a range of `out`. Rows whose values are 0 are
// not read. GLT_BAD_ID: detail = {row, neighbour}.
GLT_API int32_t glt_spread_rows(const glt_rows* rows, const int64_t* values, int32_t width, int64_t* out,
                                int32_t threads, int64_t* detail);

#ifdef __cplusplus
}
#endif
