// Finding one node's row or user id, by one thread. (The host's loops resolve blocks of rows, see rows.h.)
#pragma once
#include "graph.h"
#include "pick.h"
#include "weighted.h"

namespace glt {

struct Located {
  int32_t part;  // edge_type * P + part
  int64_t begin, end;
};

// The row of a destination node of the edge type, of which nothing is known. Returns a glt_status.
GLT_HD int32_t locate_row(const glt_graph& g, int32_t edge_type, int64_t gid, Located* row) {
  const int32_t type = g.dst_type[edge_type];
  if (!TypeRange(g, type).has(gid)) return GLT_BAD_ID;
  const int32_t s = segment_of(g, gid);
  row->part = edge_type * g.num_parts + s - type * g.num_parts;
  if (!g.indptr[row->part]) return GLT_BAD_ID;
  const int64_t* at = g.indptr[row->part] + (gid - g.bounds[s]);
  row->begin = at[0];
  row->end = at[1];
  return is_sound_row(row->begin, row->end, g.num_edges[row->part]) ? GLT_OK : GLT_BAD_ROW;
}

// The prefix sums of a row that was found, where it has some.
GLT_HD WeightedRow weighted_row(const glt_graph& g, const Located& row, const ExcludedRow& excluded) {
  const int32_t* sums = g.sums ? g.sums[row.part] : nullptr;
  return {sums ? sums + row.begin : nullptr, row.end - row.begin, excluded};
}

// How many neighbours the row of a node yields, but for what is excluded.
GLT_HD int64_t yields(const glt_graph& g, const Located& row, const ExcludedRow& excluded, int32_t fanout, bool replace) {
  const WeightedRow weighted = weighted_row(g, row, excluded);
  if (weighted.sums) return weighted.count(fanout, replace);
  return pick_count(left_of(weighted.length, excluded), fanout, replace);
}

// The user id of a node of the type. Returns a glt_status.
template <class Id>
GLT_HD int32_t locate_user_id(const glt_graph& g, int32_t type, int64_t gid, int64_t* uid) {
  if (!TypeRange(g, type).has(gid)) return GLT_BAD_ID;
  const int32_t s = segment_of(g, gid);
  if (!g.user_ids[s]) return GLT_BAD_ID;
  *uid = int64_t(static_cast<const Id*>(g.user_ids[s])[gid - g.bounds[s]]);
  return GLT_OK;
}

}  // namespace glt
