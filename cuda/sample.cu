// Sampling the rows of one edge type: counts first, then, with the offsets that the caller scans from them, the picks.
#include <glt/cuda.h>

#include "excluded.h"
#include "guard.h"
#include "labor_lanes.h"
#include "locate.h"
#include "pick.h"
#include "pick_lanes.h"
#include "report.h"

namespace glt {
namespace {

struct CountRow {
  glt_graph g;
  int32_t edge_type, fanout;
  bool replace;
  glt_excluded excluded;
  RowTrees trees;
  const int64_t* gids;
  int64_t *counts, *error;

  GLT_DEVICE void operator()(int64_t i) const {
    Located row;
    const int32_t status = locate_row(g, edge_type, gids[i], &row);
    ExcludedRow gone = excluded_of(excluded, gids[i]);
    if (!status) trees.narrow(g, i, &row, &gone);
    counts[i] = status ? 0 : yields(g, row, gone, fanout, replace);
    if (status == GLT_BAD_ID) report(error, status, i, gids[i]);
    if (status == GLT_BAD_ROW) report(error, status, edge_type, gids[i], row.begin, row.end);
  }
};

template <class Id>
struct PickRow {
  static constexpr int kWords = 3 * GLT_SPARE_FANOUT;

  glt_graph g;
  int32_t edge_type, fanout, hop;
  bool replace;
  uint64_t batch_key;
  glt_excluded excluded;
  RowTrees trees;
  const int64_t *gids, *uids, *offsets;
  int64_t first_lid;
  int64_t *neighbors, *dst, *edge_rows;
  uint32_t* spare;
  int64_t* error;

  struct Item {
    RowPicks picks;
    const Id* indices;  // of the row
    int64_t edge_row, at, lid;
    ExcludedRow excluded;
    LaborRow<Id> labor;
  };

  // A row that counted 0, also because it is damaged, is not read again.
  GLT_DEVICE Item open(int64_t i, uint32_t* shared) const {
    Item item{};
    item.at = offsets[i];
    const uint32_t count = uint32_t(offsets[i + 1] - item.at);
    Located row;
    if (!count || locate_row(g, edge_type, gids[i], &row)) return Item{};
    item.excluded = excluded_of(excluded, gids[i]);
    trees.narrow(g, i, &row, &item.excluded);
    item.indices = static_cast<const Id*>(g.indices[row.part]) + row.begin;
    item.edge_row = g.edge_base[row.part] + row.begin;
    item.lid = first_lid + i;
    const uint64_t stream = draw_stream(g, trees.key(draw_key(g, edge_type, batch_key, hop), i), uids[i]);
    uint32_t* memory = fanout > GLT_SPARE_FANOUT ? spare + 3 * item.at : shared;
    const WeightedRow weighted = weighted_row(g, row, item.excluded);
    if (weighted.sums) {
      item.picks = open_weighted(weighted, count, fanout, replace, stream, memory);
    } else {
      const uint32_t degree = uint32_t(left_of(row.end - row.begin, item.excluded));
      item.picks = row.latest ? open_latest(degree, count) : open_picks(degree, count, fanout, replace, stream, memory);
    }
    item.picks.given = g.all_ids && !item.picks.all;
    if (item.picks.given) item.labor = labor_row<Id>(g, edge_type, item.indices, stream, weighted);
    if (weighted.sums || item.picks.given) item.excluded = {};  // such picks are positions in the whole row
    return item;
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
    const int64_t gid = int64_t(row.indices[position]), to = row.at + rank;
    const bool good = TypeRange(g, g.src_type[edge_type]).has(gid);
    if (!good) report(error, GLT_BAD_ROW, edge_type, -1, gid);
    neighbors[to] = good ? gid : -1;
    if (dst) dst[to] = row.lid;
    if (edge_rows) edge_rows[to] = row.edge_row + position;
  }
};

template <class Id>
struct UserId {
  glt_graph g;
  int32_t type;
  const int64_t* gids;
  int64_t begin;
  const int64_t* count;
  int64_t *uids, *error;

  GLT_DEVICE void operator()(int64_t k) const {
    const int64_t i = begin + k;
    if (i < *count && locate_user_id<Id>(g, type, gids[i], uids + i)) report(error, GLT_BAD_ID, i, gids[i]);
  }
};

// Half a warp serves fan-outs up to 16 with fewer idle lanes.
template <class Id>
int32_t pick_rows(int64_t n, const PickRow<Id>& body, void* stream, int64_t* detail) {
  if (body.fanout >= 0 && body.fanout <= 16) return for_each_lanes<16>(n, body, stream, detail);
  return for_each_lanes<32>(n, body, stream, detail);
}

RowTrees rows_of(const glt_trees* trees) {
  if (!trees) return {nullptr, nullptr, nullptr, false};
  return {trees->of[0], trees->since, trees->until, trees->last != 0};
}

bool fits(const glt_trees* trees, bool replace) {
  return !trees || (trees->of[0] && !(trees->last && replace));
}

bool known_width(const glt_graph& g) { return g.id_bytes == 4 || g.id_bytes == 8; }

}  // namespace
}  // namespace glt

int32_t glt_cuda_count_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows,
                            int32_t fanout, int32_t replace, const glt_excluded* excluded, const glt_trees* trees,
                            int64_t* counts, int64_t* error, int64_t* detail, void* stream) try {
  if (edge_type < 0 || edge_type >= graph->num_edge_types || !glt::is_fanout(fanout))
    return glt::fail(detail, GLT_BAD_ARG, edge_type, fanout);
  if (!glt::fits(trees, replace != 0) || !glt::can_draw(*graph, replace != 0)) return glt::fail(detail, GLT_BAD_ARG, edge_type, trees ? trees->last : 0);
  const glt_excluded some = excluded ? *excluded : glt_excluded{};
  const glt::CountRow body{*graph, edge_type, fanout, replace != 0, some, glt::rows_of(trees), gids, counts, error};
  return glt::for_each(num_rows, body, stream, detail);
}
GLT_CATCH(detail)

int32_t glt_cuda_pick_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, const int64_t* uids,
                           int64_t num_rows, int32_t fanout, uint64_t batch_key, int32_t hop, int32_t replace,
                           const glt_excluded* excluded, const glt_trees* trees, const int64_t* offsets, int64_t first_lid,
                           int64_t* neighbors, int64_t* dst, int64_t* edge_rows, uint32_t* spare, int64_t* error, int64_t* detail, void* stream) try {
  if (edge_type < 0 || edge_type >= graph->num_edge_types || !glt::known_width(*graph))
    return glt::fail(detail, GLT_BAD_ARG, edge_type, graph->id_bytes);
  if (!glt::is_fanout(fanout) || (fanout > GLT_SPARE_FANOUT && !spare)) return glt::fail(detail, GLT_BAD_ARG, edge_type, fanout);
  if (!glt::fits(trees, replace != 0) || !glt::can_draw(*graph, replace != 0)) return glt::fail(detail, GLT_BAD_ARG, edge_type, trees ? trees->last : 0);
  auto run = [&](auto id) {
    const glt_excluded some = excluded ? *excluded : glt_excluded{};
    const glt::PickRow<decltype(id)> body{*graph,  edge_type, fanout, hop,  replace != 0, batch_key, some,      glt::rows_of(trees),
                                          gids,    uids,      offsets, first_lid, neighbors, dst, edge_rows, spare, error};
    return glt::pick_rows(num_rows, body, stream, detail);
  };
  return graph->id_bytes == 4 ? run(int32_t()) : run(int64_t());
}
GLT_CATCH(detail)

int32_t glt_cuda_user_ids(const glt_graph* graph, int32_t type, const int64_t* gids, int64_t begin, int64_t end,
                          const int64_t* count, int64_t* uids, int64_t* error, int64_t* detail, void* stream) try {
  if (type < 0 || type >= graph->num_types || !glt::known_width(*graph))
    return glt::fail(detail, GLT_BAD_ARG, type, graph->id_bytes);
  auto run = [&](auto id) {
    const glt::UserId<decltype(id)> body{*graph, type, gids, begin, count, uids, error};
    return glt::for_each(end - begin, body, stream, detail);
  };
  return graph->id_bytes == 4 ? run(int32_t()) : run(int64_t());
}
GLT_CATCH(detail)
