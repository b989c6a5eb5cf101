// Finding one node's row or user id, by one thread. (The host's loops resolve blocks of rows, see rows.h.)
#pragma once
#include "graph.h"
#include "pick.h"
#include "weighted.h"
#include "window.h"

namespace glt {

// A row, or the part of it in the window of a tree.
struct Located {
  int32_t part;        // edge_type * P + part
  int64_t begin, end;
  int64_t first;       // where the whole row begins
  bool latest;         // the last entries are picked, not any
};

// Finds the row of a node in an edge type; gid is not checked yet. Returns a glt_status.
GLT_HD int32_t locate_row(const glt_graph& g, int32_t edge_type, int64_t gid, Located* row) {
  const int32_t type = g.dst_type[edge_type];
  if (!TypeRange(g, type).has(gid)) return GLT_BAD_ID;
  const int32_t s = segment_of(g, gid);
  row->part = edge_type * g.num_parts + s - type * g.num_parts;
  if (!g.indptr[row->part]) return GLT_BAD_ID;
  const int64_t* at = g.indptr[row->part] + (gid - g.bounds[s]);
  row->begin = at[0];
  row->end = at[1];
  row->first = at[0];
  row->latest = false;
  return is_sound_row(row->begin, row->end, g.num_edges[row->part]) ? GLT_OK : GLT_BAD_ROW;
}

// The trees of the rows that a kernel is called for.
struct RowTrees {
  const int32_t* of;  // [F], null: the batch has none
  const int64_t *since, *until;
  bool last;

  // Narrows a row that was found, and its excluded entries, to the window of its tree.
  GLT_HD void narrow(const glt_graph& g, int64_t i, Located* row, ExcludedRow* excluded) const {
    const int64_t* times = of && g.times && (since || until) ? g.times[row->part] : nullptr;
    if (!times) return;
    const glt_trees trees{0, nullptr, since, until, 0, 0};
    const TimeWindow window = window_of(times + row->begin, row->end - row->begin, trees, of[i]);
    *excluded = within(*excluded, window);
    row->end = row->begin + window.end;
    row->begin += window.begin;
    row->latest = last;
  }

  GLT_HD uint64_t key(uint64_t hop_key, int64_t i) const { return of ? tree_key(hop_key, of[i]) : hop_key; }
};

// The prefix sums of a row that was found, where it has some.
GLT_HD WeightedRow weighted_row(const glt_graph& g, const Located& row, const ExcludedRow& excluded) {
  const int32_t* sums = g.sums ? g.sums[row.part] : nullptr;
  if (!sums) return {nullptr, row.end - row.begin, excluded};
  return {sums + row.begin, row.end - row.begin, excluded, row.begin > row.first ? uint32_t(sums[row.begin - 1]) : 0};
}

// The number of neighbours that the row of a node yields, without excluded ones.
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
