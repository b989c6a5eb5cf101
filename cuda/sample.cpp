// One hop of one edge type, for callers that hold the loop themselves (rows of several owners).
#include <glt/api.h>

#include <atomic>
#include <vector>

#include "guard.h"
#include "rows.h"
#include "threads.h"

namespace glt {
namespace {

const int32_t* trees_from(const RowRequest& q, int64_t row) { return q.trees ? q.trees->of[0] + row : nullptr; }

template <class Id>
int32_t count_rows(const RowRequest& q, const int64_t* gids, int64_t n, int64_t* counts, int64_t* detail) {
  const TypeRange range(*q.graph, q.graph->dst_type[q.edge_type]);
  const std::vector<int64_t> no_ids(kBlock, 0);  // counting needs no draws
  Row rows[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = std::min<int64_t>(kBlock, n - i);
    for (int64_t k = 0; k < m; ++k)
      if (!range.has(gids[i + k])) return fail(detail, GLT_BAD_ID, i + k, gids[i + k]);
    const int32_t status = find_rows<Id>(q, gids + i, no_ids.data(), trees_from(q, i), m, rows, detail);
    if (status) return status;
    count_weighted(q, m, rows);
    for (int64_t k = 0; k < m; ++k) counts[i + k] = rows[k].count;
  }
  return GLT_OK;
}

// The picks [first, last) of all rows' picks.
struct Window {
  std::vector<int64_t> offset;  // [rows + 1] of each row's picks
  int64_t first, last;

  Window(const int64_t* counts, int64_t rows, int64_t first, int64_t n) : offset(rows + 1, 0), first(first), last(first + n) {
    for (int64_t i = 0; i < rows; ++i) offset[i + 1] = offset[i] + counts[i];
  }
  // The rows that have some of them.
  int64_t begin() const { return std::upper_bound(offset.begin(), offset.end(), first) - offset.begin() - 1; }
  int64_t end() const { return std::lower_bound(offset.begin(), offset.end(), last) - offset.begin(); }
  // The first and last of them among the picks of a row.
  int64_t lower(int64_t row) const { return std::max(first, offset[row]) - offset[row]; }
  int64_t upper(int64_t row) const { return std::min(last, offset[row + 1]) - offset[row]; }
};

// Rows [begin, end), straight into place: a buffer for the picks of a block would have to hold its longest row.
template <class Id>
int32_t pick_range(const RowRequest& q, const int64_t* gids, const Window& w, int64_t begin, int64_t end, const Picks& out,
                   int64_t* detail) {
  const TypeRange range(*q.graph, q.graph->dst_type[q.edge_type]);
  Spare spare;
  Row rows[kBlock];
  DrawnRows drawn;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t m = std::min<int64_t>(kBlock, end - i);
    for (int64_t k = i; k < i + m; ++k)
      if (!range.has(gids[k])) return fail(detail, GLT_BAD_ID, k, gids[k]);
    if (const int32_t status = find_rows<Id>(q, gids + i, nullptr, trees_from(q, i), m, rows, detail)) return status;
    draw_rows<Id>(q, m, rows, drawn, spare);
    for (int64_t k = i; k < i + m; ++k) {
      if (rows[k - i].count != w.offset[k + 1] - w.offset[k]) return fail(detail, GLT_BAD_ARG, k, rows[k - i].count);
      if (k + 1 < i + m) prefetch_row<Id>(q, rows[k + 1 - i]);
      const int64_t lower = w.lower(k), upper = w.upper(k);
      if (lower < upper) pick_row<Id>(q, rows[k - i], lower, upper, out + (w.offset[k] + lower - w.first), spare);
    }
    const int64_t from = w.offset[i] + w.lower(i), to = w.offset[i + m - 1] + w.upper(i + m - 1);
    if (!read_picks<Id>(q, out + (from - w.first), to - from, detail)) return GLT_BAD_ROW;
  }
  return GLT_OK;
}

struct Failure {
  int32_t status = GLT_OK;
  int64_t detail[4] = {0, 0, 0, 0};
};

template <class Id>
int32_t pick_rows(RowRequest q, const int64_t* gids, const Window& w, int32_t threads, const Picks& out, int64_t* detail) {
  const int64_t begin = w.begin(), end = w.end();
  FirstBytes first_bytes;
  if (q.graph->all_ids && !q.trees && q.fanout > 0)
    q.first_bytes = first_bytes.of<Id>(*q.graph, q.edge_type, q.key, end - begin, threads);
  std::vector<Failure> failed(std::max(1, threads));
  parallel(end - begin, threads, 1024, [&](int64_t from, int64_t to, int index) {
    failed[index].status = pick_range<Id>(q, gids, w, begin + from, begin + to, out, failed[index].detail);
  });
  for (const Failure& f : failed)
    if (f.status) return fail(detail, f.status, f.detail[0], f.detail[1], f.detail[2], f.detail[3]);
  return GLT_OK;
}

// Checks that the trees of rows are valid indexes into the arrays of trees.
bool are_known(const glt_graph& g, const glt_trees* trees, int64_t num_rows, bool replace, int64_t* detail) {
  if (trees && !is_sound(*trees, num_nodes(g), replace)) {
    fail(detail, GLT_BAD_ARG, trees->num_trees, replace);
    return false;
  }
  for (int64_t i = 0; trees && i < num_rows; ++i) {
    if (uint64_t(trees->of[0][i]) < uint64_t(trees->num_trees)) continue;
    fail(detail, GLT_BAD_ARG, i, trees->of[0][i]);
    return false;
  }
  return true;
}

bool is_known(const glt_graph& g, int32_t edge_type, int32_t fanout, int32_t replace) {
  return edge_type >= 0 && edge_type < g.num_edge_types && is_fanout(fanout) && can_draw(g, replace != 0);
}

}  // namespace
}  // namespace glt

int32_t glt_count_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows, int32_t fanout,
                       int32_t replace, const glt_excluded* excluded, const glt_trees* trees, int64_t* counts, int64_t* detail) try {
  if (!glt::is_known(*graph, edge_type, fanout, replace)) return glt::fail(detail, GLT_BAD_ARG, edge_type, fanout);
  if (!glt::are_known(*graph, trees, num_rows, replace != 0, detail)) return GLT_BAD_ARG;
  glt::RowRequest q{graph, edge_type, fanout, replace != 0, 0};
  const glt::ExcludedRows rows(excluded ? *excluded : glt_excluded{});
  if (excluded) q.excluded = &rows;
  q.trees = trees;
  return (graph->id_bytes == 4 ? glt::count_rows<int32_t> : glt::count_rows<int64_t>)(q, gids, num_rows, counts, detail);
}
GLT_CATCH(detail)

int32_t glt_pick_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows, int32_t fanout,
                      uint64_t batch_key, int32_t hop, int32_t replace, int32_t threads, const glt_excluded* excluded,
                      const glt_trees* trees, const int64_t* counts, int64_t first, int64_t n, int64_t* neighbors,
                      int64_t* edge_rows, int64_t* detail) try {
  if (!glt::is_known(*graph, edge_type, fanout, replace)) return glt::fail(detail, GLT_BAD_ARG, edge_type, fanout);
  if (!glt::are_known(*graph, trees, num_rows, replace != 0, detail)) return GLT_BAD_ARG;
  const glt::Window window(counts, num_rows, first, n);
  if (first < 0 || n < 0 || window.last > window.offset.back()) return glt::fail(detail, GLT_BAD_ARG, first, n);
  if (n == 0) return GLT_OK;
  glt::RowRequest q{graph, edge_type, fanout, replace != 0, glt::draw_key(*graph, edge_type, batch_key, hop)};
  const glt::ExcludedRows rows(excluded ? *excluded : glt_excluded{});
  if (excluded) q.excluded = &rows;
  q.trees = trees;
  const glt::Picks out{reinterpret_cast<uint64_t*>(neighbors), nullptr, edge_rows};
  return (graph->id_bytes == 4 ? glt::pick_rows<int32_t> : glt::pick_rows<int64_t>)(q, gids, window, threads, out, detail);
}
GLT_CATCH(detail)
