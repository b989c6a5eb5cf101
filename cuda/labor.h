// LABOR-0 (Balin and Catalyurek: "Layer-Neighbor Sampling", NeurIPS 2023). In a hop every node has one random number for all
// rows, and a row picks the entries whose sources have the smallest ones: so rows that share neighbours pick the same ones, and a
// batch has fewer nodes. With weights the smallest number / weight is picked (section A.3 there; Ohlsson, 1998). Each row by
// itself is still drawn uniformly, without replacement.
#pragma once
#include "graph.h"
#include "random.h"
#include "weighted.h"

namespace glt {

constexpr uint64_t kLaborRole = 0xe1cfddad468d0e6bull;  // BLAKE2b of "labor": independent of all other draws of the batch

// The key of the numbers of a node type's nodes in a hop.
GLT_HD uint64_t labor_key(uint64_t batch_key, int hop, uint64_t type_key) {
  return hop_key(mix(batch_key ^ mix(kLaborRole)), hop, type_key);
}

// The key of the draws of an edge type's rows in a hop: that of LABOR, if the graph has all ids, which LABOR needs.
GLT_HD uint64_t draw_key(const glt_graph& g, int32_t edge_type, uint64_t batch_key, int hop) {
  if (g.all_ids) return labor_key(batch_key, hop, g.type_key[g.src_type[edge_type]]);
  return hop_key(batch_key, hop, g.key[edge_type]);
}

// False for LABOR with replacement: a source has only one number, so it cannot be drawn twice.
GLT_HD bool can_draw(const glt_graph& g, bool replace) { return !(g.all_ids && replace); }

// The random numbers of a row: a stream of its own, or by LABOR those of its sources.
GLT_HD uint64_t draw_stream(const glt_graph& g, uint64_t key, int64_t user_id) { return g.all_ids ? key : row_stream(key, user_id); }

// A row with the random numbers of its sources, by which LABOR picks.
template <class Id>
struct LaborRow {
  const Id* neighbors;    // of the row
  const Id* user_ids;     // of the nodes from first_gid on
  const Id* more_ids;     // of those behind the first num_ids
  int64_t first_gid, num_gids, num_ids;
  uint64_t key;           // labor_key, or that of the row's tree
  WeightedRow entries;    // all entries that can be picked; sums null: they weigh the same

  // Where the user id of the source of an entry is; of one that is no node, that of another.
  GLT_HD const Id* source(int64_t at) const {
    const int64_t known = uint64_t(at) < uint64_t(num_gids) ? at : 0;
    return known < num_ids ? user_ids + known : more_ids + (known - num_ids);
  }

  // The k smallest (value, position) are picked. A source that is no node has 0: it is picked, and then found to be none.
  GLT_HD uint64_t number(int64_t position) const {
    const int64_t at = int64_t(neighbors[position]) - first_gid;
    const uint64_t number = row_stream(key, int64_t(*source(at)));
    return uint64_t(at) < uint64_t(num_gids) ? number : 0;
  }

  // The entries with the smallest values are picked.
  GLT_HD uint64_t value(int64_t position) const {
    return entries.sums ? number(position) / entries.weight(position) : number(position);
  }

  // visit(position, weight) for each entry that can be picked, ascending.
  template <class Visit>
  GLT_HD void each(const Visit& visit) const {
    const WeightedRow row = entries;  // a local copy: the compiler knows that stores of `visit` do not change it
    if (row.sums) {
      row.each_positive(row.length, [&](int64_t position, int64_t) { visit(position, row.weight(position)); });
      return;
    }
    int64_t position = 0;
    for (int64_t k = 0; k <= row.excluded.n; ++k, ++position) {
      const int64_t stop = k < row.excluded.n ? row.excluded.at(k) : row.length;
      for (; position < stop; ++position) visit(position, uint32_t(1));
    }
  }
};

template <class Id>
GLT_HD LaborRow<Id> labor_row(const glt_graph& g, int32_t edge_type, const void* neighbors, uint64_t key,
                              const WeightedRow& entries) {
  const int32_t type = g.src_type[edge_type];
  const TypeRange range(g, type);
  const int64_t first = range.begin - source_shift(g, edge_type);
  const Id* more = g.more_ids ? static_cast<const Id*>(g.more_ids[type]) : nullptr;
  return {static_cast<const Id*>(neighbors), static_cast<const Id*>(g.all_ids[type]), more, first, range.size,
          g.num_ids[type], key, entries};
}

}  // namespace glt
