// Building the CSC of a part: the partitioner's loops over all edges. Conventions as in api.h.
//
// An edge is stored in between as a record of three integers (row, source, edge id), each of record_bytes / 3 bytes (4 or 8):
// the row is counted from the first row of the edge's bucket, the source is the user's id.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

// Buckets of destination rows: bucket b holds the new numbers [starts[b], starts[b + 1]).
// hint[number >> shift] is the first bucket that a number of that block can lie in.
typedef struct {
  int32_t id_bytes;        // 4 or 8: width of `numbers`
  int32_t record_bytes;    // 12 or 24
  int32_t shift;
  int32_t num_buckets;
  const void* numbers;     // [num_nodes] new number by user id, of the destination type
  const int64_t* starts;   // [num_buckets + 1]
  const int32_t* hint;     // [(num_nodes >> shift) + 1]
} glt_buckets;

// ++counts[ids[i]] for n ids, each in [0, num_nodes). GLT_BAD_ID: detail = {position, id}; counts are then partly done.
GLT_API int32_t glt_build_count(const int64_t* ids, int64_t n, int64_t num_nodes, int64_t* counts, int64_t* detail);

// counts[b] += number of the n edges whose destination lies in bucket b. GLT_BAD_ARG: as below.
GLT_API int32_t glt_build_sizes(const glt_buckets* buckets, const int64_t* dst, int64_t n, int64_t* counts,
                                       int64_t* detail);

// Writes the records of n edges, ids first_edge_id + i, each to records[cursor[its bucket]++], below limit[its bucket].
// GLT_BAD_ARG: the edges are not those that were counted: an id is out of range or a bucket is full; detail = {position}.
GLT_API int32_t glt_build_deal(const glt_buckets* buckets, const int64_t* src, const int64_t* dst, int64_t n,
                                  int64_t num_sources, int64_t first_edge_id, int64_t* cursor, const int64_t* limit,
                                  void* records, int64_t* detail);

// The rows of one bucket: sorts n records by (row, source, edge id); with `coalesce` keeps the first of each (row,
// source). numbers: [nodes of the source type] new number by user id, id_bytes wide; indices = offset + number.
// work: n * record_bytes * 2 / 3 bytes. Out: indptr [num_rows + 1] from 0; indices (id_bytes), edge_ids (edge_id_bytes),
// room for n; *num_kept. GLT_BAD_ARG: a record names a row outside the bucket; detail = {position, row}.
GLT_API int32_t glt_build_rows(const void* records, int64_t n, int32_t record_bytes, int64_t num_rows, int32_t coalesce,
                               const void* numbers, int32_t id_bytes, int64_t offset, int32_t edge_id_bytes, void* work,
                               int64_t* indptr, void* indices, void* edge_ids, int64_t* num_kept, int64_t* detail);

#ifdef __cplusplus
}
#endif
