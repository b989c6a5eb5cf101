// The kernels of a k-hop batch. For each edge type of each hop: count the rows of the frontier and place their
// picks; pick, and enter what was picked into the table; number the new nodes. At the end the edges get their lids, which
// the table has for every slot. How first occurrences come out the same for any order of threads: see lids.h.
#pragma once
#include "excluded.h"
#include "khop_room.h"
#include "labor_lanes.h"
#include "lids.h"
#include "locate.h"
#include "pick.h"
#include "pick_lanes.h"
#include "report.h"

namespace glt {

// One edge type of one hop. Pointers to single counts are to cells that one kernel writes and only later ones read.
struct KHopContext {
  glt_graph g;
  int32_t edge_type, hop, fanout, src_type;
  bool replace;
  uint64_t batch_key;
  glt_excluded excluded;              // of the edge type
  const int64_t *dst_gid, *dst_uid;   // of the destination type; its lids [*lo, *hi) are the frontier
  const int64_t *lo, *hi;
  const int64_t* edges_before;        // of the edge type
  int64_t* edges_after;
  const int64_t* nodes_before;        // of the source type
  int64_t* nodes_after;
  FoundRow* rows;                     // [frontier]
  int64_t* row_edges;                 // [frontier] edge row of the row's first edge, or null
  uint32_t* spare;                    // 3 words a pick
  Picked* picked;                     // of the edge type, all hops
  int64_t *edge_row, *src_gid, *src_uid, *error;

  GLT_DEVICE int64_t num_rows() const { return *hi - *lo; }
};

template <class Id, class Lids>
struct KHopSeeds {
  glt_graph g;
  Lids lids;
  int32_t type;
  const int64_t* seeds;
  int64_t n;
  int64_t *gid, *uid, *count, *error;

  GLT_DEVICE void operator()(int64_t i) const {
    int64_t user_id = -1;
    gid[i] = seeds[i];
    if (locate_user_id<Id>(g, type, seeds[i], &user_id)) report(error, GLT_BAD_ID, i, seeds[i]);
    else if (lids.enter(seeds[i], uint32_t(i)) == kNoSlot) report(error, GLT_GROW, 0, 0, 0);
    uid[i] = user_id;
    if (i == 0) *count = n;
  }
};

// A scan, see scan.cuh: how many neighbours each row yields, and where they go.
template <class Id>
struct KHopCount {
  KHopContext c;

  GLT_DEVICE int64_t size() const { return c.num_rows(); }

  GLT_DEVICE uint32_t value(int64_t i) const {
    const int64_t gid = c.dst_gid[*c.lo + i];
    Located row;
    const int32_t status = locate_row(c.g, c.edge_type, gid, &row);
    if (status == GLT_BAD_ID) report(c.error, status, i, gid);
    if (status == GLT_BAD_ROW) report(c.error, status, c.edge_type, gid, row.begin, row.end);
    if (status) row.part = 0, row.begin = row.end = 0;
    c.rows[i].neighbors = static_cast<const Id*>(c.g.indices[row.part]) + row.begin;
    const ExcludedRow excluded = excluded_of(c.excluded, gid);
    c.rows[i].degree = uint32_t(left_of(row.end - row.begin, excluded));
    if (c.row_edges) c.row_edges[i] = c.g.edge_base[row.part] + row.begin;
    return uint32_t(yields(c.g, row, excluded, c.fanout, c.replace));
  }

  GLT_DEVICE void place(int64_t i, int64_t before, uint32_t) const { c.rows[i].at = uint32_t(before); }
  GLT_DEVICE void finish(int64_t total) const { *c.edges_after = *c.edges_before + total; }
};

template <class Id, class Lids, int kLanes>
struct KHopPick {
  static constexpr int kWords = 3 * (kLanes < 32 ? kLanes : GLT_SPARE_FANOUT);

  KHopContext c;
  Lids lids;

  struct Item {
    RowPicks picks;
    const Id* neighbors;
    int64_t edge_row;
    int64_t to;        // place of the first pick among the edge type's edges
    uint32_t order;    // of the first pick
    uint32_t lid;
    ExcludedRow excluded;
    LaborRow<Id> labor;
  };

  GLT_DEVICE Item open(int64_t i, uint32_t* shared) const {
    const int64_t lo = *c.lo;
    if (i >= *c.hi - lo) return Item{};
    const FoundRow row = c.rows[i];
    const ExcludedRow excluded = excluded_of(c.excluded, c.dst_gid[lo + i]);
    const WeightedRow weighted = find_entries(c.dst_gid[lo + i], excluded);
    const uint32_t count = uint32_t(weighted.sums ? weighted.count(c.fanout, c.replace) : pick_count(row.degree, c.fanout, c.replace));
    if (!count) return Item{};
    const uint64_t stream = draw_stream(c.g, draw_key(c.g, c.edge_type, c.batch_key, c.hop), c.dst_uid[lo + i]);
    uint32_t* memory = c.fanout > GLT_SPARE_FANOUT ? c.spare + 3 * int64_t(row.at) : shared;
    Item item{};
    item.picks = weighted.sums ? open_weighted(weighted, count, c.fanout, c.replace, stream, memory)
                               : open_picks(row.degree, count, c.fanout, c.replace, stream, memory);
    item.neighbors = static_cast<const Id*>(row.neighbors);
    item.edge_row = c.row_edges ? c.row_edges[i] : 0;
    item.to = *c.edges_before + row.at;
    item.order = uint32_t(*c.nodes_before + row.at);
    item.lid = uint32_t(lo + i);
    item.picks.given = c.g.all_ids && !item.picks.all;
    if (item.picks.given) item.labor = labor_row<Id>(c.g, c.edge_type, row.neighbors, stream, weighted);
    if (!weighted.sums && !item.picks.given) item.excluded = excluded;  // else picks are positions in the whole row
    return item;
  }

  // Where they are needed: the entries of a row with their weights, or all of them.
  GLT_DEVICE WeightedRow find_entries(int64_t gid, const ExcludedRow& excluded) const {
    Located row;
    if ((!c.g.sums && !c.g.all_ids) || locate_row(c.g, c.edge_type, gid, &row)) return {nullptr, 0, {nullptr, 0}};
    return weighted_row(c.g, row, excluded);
  }

  GLT_DEVICE void first(const Item& row, uint32_t lane, uint32_t lanes) const {
    if (row.picks.given && lane == 0) pick_by_labor(row.labor, row.picks.count, row.picks.drawn);
    row.picks.first(lane, lanes);
  }
  GLT_DEVICE void second(const Item& row, uint32_t lane, uint32_t lanes) const { row.picks.second(lane, lanes); }
  GLT_DEVICE void third(const Item& row, uint32_t lane, uint32_t lanes) const {
    row.picks.third(lane, lanes, [&](uint32_t pick, uint32_t rank) { write(row, row.excluded.past(pick), rank); });
  }

  GLT_DEVICE void write(const Item& row, int64_t position, uint32_t rank) const {
    c.picked[row.to + rank] = {enter(int64_t(row.neighbors[position]), row.order + rank), row.lid};
    if (c.edge_row) c.edge_row[row.to + rank] = row.edge_row + position;
  }

  GLT_DEVICE uint32_t enter(int64_t gid, uint32_t order) const {
    if (!TypeRange(c.g, c.src_type).has(gid)) {
      report(c.error, GLT_BAD_ROW, c.edge_type, -1, gid);
      return kNoSlot;
    }
    const uint32_t slot = lids.enter(gid, order);
    if (slot == kNoSlot) report(c.error, GLT_GROW, 0, 0, 0);
    return slot;
  }
};

// A scan: the first occurrences among the step's picks, which become the next lids of their type. The order in the table
// becomes the lid: no higher than it was, so that no later occurrence takes itself for the first.
template <class Id, class Lids>
struct KHopNumber {
  KHopContext c;
  Lids lids;

  GLT_DEVICE int64_t size() const { return *c.edges_after - *c.edges_before; }

  GLT_DEVICE uint32_t value(int64_t i) const {
    const uint32_t slot = c.picked[*c.edges_before + i].slot;
    return slot != kNoSlot && lids.order(slot) == uint32_t(*c.nodes_before + i);
  }

  GLT_DEVICE void place(int64_t i, int64_t before, uint32_t is_new) const {
    if (!is_new) return;
    const uint32_t slot = c.picked[*c.edges_before + i].slot;
    const int64_t lid = *c.nodes_before + before, gid = lids.id(slot);
    int64_t user_id = -1;
    if (locate_user_id<Id>(c.g, c.src_type, gid, &user_id)) report(c.error, GLT_BAD_ID, lid, gid);
    c.src_gid[lid] = gid;
    c.src_uid[lid] = user_id;
    lids.set(slot, uint32_t(lid));
  }

  GLT_DEVICE void finish(int64_t total) const { *c.nodes_after = *c.nodes_before + total; }
};

// [2, E], E = *count, in place of the first 2 * E of the array.
template <class Lids>
struct KHopEdges {
  Lids lids;
  const Picked* picked;
  const int64_t* count;
  int64_t* edge_index;

  GLT_DEVICE void operator()(int64_t i) const {
    const int64_t n = *count;
    if (i >= n) return;
    const Picked edge = picked[i];
    edge_index[i] = edge.slot == kNoSlot ? -1 : int64_t(lids.order(edge.slot));
    edge_index[n + i] = edge.dst;
  }
};

}  // namespace glt
