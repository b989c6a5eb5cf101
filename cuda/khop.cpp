// A whole k-hop batch in one call.
//
// Each hop runs in stages over blocks of rows that stay in the first-level cache: row pointers, positions, neighbour
// ids, relabelling; each stage prefetches for the next. Rows may be sampled by several threads; local ids are given in
// frontier order by one, so the result does not depend on the number of threads.
#include <glt/api.h>

#include <atomic>
#include <type_traits>
#include <vector>

#include "guard.h"
#include "rows.h"
#include "table.h"
#include "threads.h"

namespace glt {
namespace {

struct Call {
  const glt_graph& g;
  const glt_workspace& ws;
  int32_t num_hops;
  const int32_t* fanouts;
  uint64_t batch_key;
  bool replace;
  int32_t threads;
  const glt_excluded* excluded;
  const glt_trees* trees;
  int64_t* detail;
};

// kTrees: a node belongs to a tree, as (tree, gid), and its id in the table is tree * number of nodes + gid.
template <class Id, class Lids, bool kTrees>
class KHop {
 public:
  KHop(const Call& call, const Lids& lids)
      : c(call),
        g(call.g),
        ws(call.ws),
        table(lids),
        num_gids(num_nodes(call.g)),
        lo(g.num_types, 0),
        hi(g.num_types, 0),
        nodes(g.num_types, 0),
        edges(g.num_edge_types, 0) {
    for (int32_t r = 0; c.excluded && r < g.num_edge_types; ++r) excluded.emplace_back(c.excluded[r]);
  }

  int32_t run(const int64_t* const* seeds, const int64_t* num_seeds) {
    table.clear();
    int32_t status = GLT_OK;
    for (int32_t t = 0; t < g.num_types && !status; ++t) status = add_seeds(seeds[t], num_seeds[t], t);
    if (!status) status = close_hop(0);
    for (int32_t h = 0; h < c.num_hops && !status; ++h) {
      for (int32_t r = 0; r < g.num_edge_types && !status; ++r) {
        const int64_t before = edges[r];
        status = expand(h, r);
        ws.edges_per_hop[r * c.num_hops + h] = edges[r] - before;
      }
      if (!status) status = close_hop(h + 1);
    }
    if (!status) *ws.table_base = table.next_base(total);
    return status;
  }

 private:
  int32_t add_seeds(const int64_t* seeds, int64_t n, int32_t type) {
    const TypeRange range(g, type);
    if (n > ws.node_cap[type]) return fail(c.detail, GLT_GROW, 2, type, n);
    if (total + n > table.limit()) return fail(c.detail, GLT_GROW, 0, 0, 2 * (total + n));
    for (int64_t i = 0; i < n; ++i) {
      if (!range.has(seeds[i])) return fail(c.detail, GLT_BAD_ID, i, seeds[i]);
      int64_t tree = 0;
      if (kTrees) {
        tree = c.trees->of[type][i];
        if (uint64_t(tree) >= uint64_t(c.trees->num_trees)) return fail(c.detail, GLT_BAD_ARG, i, tree);
        ws.tree[type][i] = int32_t(tree);
      }
      table.enter(tree * num_gids + seeds[i], int32_t(i));
      ws.gid[type][i] = seeds[i];
    }
    nodes[type] = n;
    total += n;
    return GLT_OK;
  }

  // The nodes found in this hop become the next frontier; their user ids are looked up.
  int32_t close_hop(int32_t hop) {
    for (int32_t t = 0; t < g.num_types; ++t) {
      lo[t] = hi[t];
      hi[t] = nodes[t];
      ws.nodes_per_hop[t * (c.num_hops + 1) + hop] = hi[t] - lo[t];
      std::atomic<int64_t> absent{-1};
      parallel(hi[t] - lo[t], c.threads, 4096, [&](int64_t begin, int64_t end, int) {
        const int64_t stopped = look_up(t, lo[t] + begin, lo[t] + end);
        if (stopped >= 0) absent = stopped;
      });
      if (absent >= 0) return fail(c.detail, GLT_BAD_ID, absent, ws.gid[t][absent]);
    }
    return GLT_OK;
  }

  // Position of a node whose part is not local, or -1.
  int64_t look_up(int32_t t, int64_t begin, int64_t end) {
    const Id* at[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min<int64_t>(kBlock, end - i);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t gid = ws.gid[t][i + k];
        const int32_t s = segment_of(g, gid);
        if (!g.user_ids[s]) return i + k;
        at[k] = static_cast<const Id*>(g.user_ids[s]) + (gid - g.bounds[s]);
        prefetch_l2(at[k]);
      }
      for (int64_t k = 0; k < n; ++k) ws.uid[t][i + k] = int64_t(*at[k]);
    }
    return -1;
  }

  int32_t expand(int32_t h, int32_t r) {
    const int32_t fanout = c.fanouts[h * g.num_edge_types + r], type = g.dst_type[r];
    if (fanout == 0 || lo[type] == hi[type]) return GLT_OK;
    RowRequest q{&g, r, fanout, c.replace, draw_key(g, r, c.batch_key, h)};
    if (c.excluded && c.excluded[r].num_rows) q.excluded = &excluded[r];
    if (ws.e_id[r]) q.edge_ids = ws.edge_ids, q.edge_id_bytes = ws.edge_id_bytes;
    q.trees = c.trees;
    if (g.all_ids && !kTrees && fanout > 0) q.first_bytes = first_bytes.of<Id>(g, r, q.key, hi[type] - lo[type], c.threads);
    // as many rows as fit into scratch memory with the most neighbours that they can yield; for few rows one thread is as fast
    const int64_t room = fanout > 0 ? ws.scratch_cap / row_words(r, fanout) : 0;
    for (int64_t row = lo[type]; row < hi[type];) {
      const int64_t n = std::min(hi[type] - row, room);
      const int32_t status = c.threads > 1 && n >= 1024 ? step_threads(q, type, &row, n) : step(q, type, &row);
      if (status) return status;
    }
    return GLT_OK;
  }

  // A few rows on this thread.
  int32_t step(const RowRequest& q, int32_t type, int64_t* row) {
    const int64_t lists = num_lists(q.edge_type), cap = ws.scratch_cap / lists;
    int64_t counts[kBlock];
    Slice s{*row, std::min(*row + kBlock, hi[type]), counts, picks_in(q.edge_type, ws.scratch, cap), cap};
    sample_slice<Id>(q, ws.gid[type], ws.uid[type], trees_of(type), s, spare);
    *row = s.end;
    s.detail[2] *= s.status == GLT_GROW ? lists : 1;
    return relabel(q, s);
  }

  // n rows divided over the threads; relabelled in order by this one.
  int32_t step_threads(const RowRequest& q, int32_t type, int64_t* row, int64_t n) {
    std::vector<Slice> slices(c.threads);
    parallel(n, c.threads, 512, [&](int64_t begin, int64_t end, int index) {
      uint64_t* memory = ws.scratch + begin * row_words(q.edge_type, q.fanout);
      const int64_t rows = end - begin, cap = rows * q.fanout;
      Spare own;
      Slice s{*row + begin, *row + end, reinterpret_cast<int64_t*>(memory), picks_in(q.edge_type, memory + rows, cap), cap};
      sample_slice<Id>(q, ws.gid[type], ws.uid[type], trees_of(type), s, own);
      slices[index] = s;
    });
    for (const Slice& s : slices) {
      const int32_t status = relabel(q, s);
      if (status) return status;
    }
    *row += n;
    return GLT_OK;
  }

  const int32_t* trees_of(int32_t type) const { return kTrees ? ws.tree[type] : nullptr; }
  int64_t num_lists(int32_t r) const { return 1 + (ws.e_id[r] != nullptr) + (ws.edge_row[r] != nullptr); }
  int64_t row_words(int32_t r, int32_t fanout) const { return 1 + int64_t(fanout) * num_lists(r); }  // with its count

  Picks picks_in(int32_t r, uint64_t* memory, int64_t cap) const {
    Picks picks{memory, nullptr, nullptr};
    if (ws.e_id[r]) picks.edge_ids = memory += cap;
    if (ws.edge_row[r]) picks.edge_rows = reinterpret_cast<int64_t*>(memory += cap);
    return picks;
  }

  int32_t relabel(const RowRequest& q, const Slice& s) {
    if (s.status) return fail(c.detail, s.status, s.detail[0], s.detail[1], s.detail[2], s.detail[3]);
    const int32_t r = q.edge_type;
    const int64_t e = edges[r];
    if (e + s.used > ws.edge_cap[r]) {
      const int64_t rest = q.fanout > 0 ? (hi[g.dst_type[r]] - s.end) * q.fanout : 0;  // at most: few rows may yield so much
      return fail(c.detail, GLT_GROW, 3, r, e + s.used + std::min(rest, e + s.used));
    }
    if (s.picks.edge_rows) std::memcpy(ws.edge_row[r] + e, s.picks.edge_rows, s.used * sizeof(int64_t));
    if (s.picks.edge_ids && q.edge_id_bytes == 4) std::copy_n(s.picks.edge_ids, s.used, static_cast<int32_t*>(ws.e_id[r]) + e);
    if (s.picks.edge_ids && q.edge_id_bytes == 8) std::copy_n(s.picks.edge_ids, s.used, static_cast<int64_t*>(ws.e_id[r]) + e);
    int32_t* dst = ws.dst[r] + e;
    for (int64_t row = s.begin; row < s.end; ++row) dst = std::fill_n(dst, s.counts[row - s.begin], int32_t(row));
    edges[r] = e + s.used;
    if (!kTrees) return number(g.src_type[r], s.picks.neighbors, s.used, ws.src[r] + e);
    add_trees(trees_of(g.dst_type[r]), s);
    const int64_t first = nodes[g.src_type[r]];
    const int32_t status = number(g.src_type[r], s.picks.neighbors, s.used, ws.src[r] + e);
    split(g.src_type[r], first);
    return status;
  }

  // Converts gids to ids of the table, and back for the nodes that were new.
  void add_trees(const int32_t* trees, const Slice& s) const {
    uint64_t* picks = s.picks.neighbors;
    for (int64_t row = s.begin; row < s.end; ++row) {
      const uint64_t base = uint64_t(trees[row]) * uint64_t(num_gids);
      for (const uint64_t* stop = picks + s.counts[row - s.begin]; picks < stop; ++picks) *picks += base;
    }
  }
  void split(int32_t type, int64_t first) {
    for (int64_t i = first; i < nodes[type]; ++i) {
      const int64_t tree = ws.gid[type][i] / num_gids;
      ws.gid[type][i] -= tree * num_gids;
      ws.tree[type][i] = int32_t(tree);
    }
  }

  // The local ids of n neighbours; new ones are appended to their type.
  int32_t number(int32_t type, const uint64_t* neighbors, int64_t count, int32_t* lids) {
    constexpr int64_t kAhead = 24;
    const Lids ids = table;  // a local copy: the compiler knows that stores do not change it
    const int64_t first = nodes[type], most_new = std::min(ws.node_cap[type] - first, table.limit() - total);
    int64_t n = first, i = 0;
    int64_t* gids = ws.gid[type];
    for (int64_t k = 0; k < std::min(kAhead, count); ++k) ids.prefetch(int64_t(neighbors[k]));
    // If all fit, without a branch: a processor cannot predict whether a neighbour is new.
    if (count <= most_new) {
      for (; i < count; ++i) {
        ids.prefetch(int64_t(neighbors[std::min(i + kAhead, count - 1)]));
        const int64_t gid = int64_t(neighbors[i]);
        const int32_t lid = ids.enter(gid, int32_t(n));
        gids[n] = gid;
        lids[i] = lid;
        n += lid == n;
      }
    }
    for (; i < count; ++i) {
      if (i + kAhead < count) ids.prefetch(int64_t(neighbors[i + kAhead]));
      lids[i] = ids.enter(int64_t(neighbors[i]), int32_t(n));
      if (lids[i] < n) continue;
      if (n >= ws.node_cap[type]) return fail(c.detail, GLT_GROW, 2, type, 2 * (n + 1));
      if (n - first >= most_new) return fail(c.detail, GLT_GROW, 0, 0, 2 * ws.table_cap);
      gids[n++] = int64_t(neighbors[i]);
    }
    total += n - first;
    nodes[type] = n;
    return GLT_OK;
  }

  const Call& c;
  const glt_graph& g;
  const glt_workspace& ws;
  Lids table;
  const int64_t num_gids;
  std::vector<int64_t> lo, hi, nodes, edges;  // frontier [lo, hi) and counts, per type; edges per edge type
  std::vector<ExcludedRows> excluded;
  Spare spare;
  FirstBytes first_bytes;
  int64_t total = 0;
};

}  // namespace
}  // namespace glt

int32_t glt_khop(const glt_graph* graph, const int64_t* const* seeds, const int64_t* num_seeds, int32_t num_hops,
                 const int32_t* fanouts, uint64_t batch_key, int32_t replace, int32_t threads,
                 const glt_excluded* excluded, const glt_trees* trees, const glt_workspace* ws, int64_t* detail) try {
  using namespace glt;
  if (num_hops < 0 || num_hops > GLT_MAX_HOPS || ws->table_cap < 2) return fail(detail, GLT_BAD_ARG, num_hops, ws->table_cap);
  for (int32_t i = 0; i < num_hops * graph->num_edge_types; ++i)
    if (!is_fanout(fanouts[i])) return fail(detail, GLT_BAD_ARG, i, fanouts[i]);
  if (!can_draw(*graph, replace != 0)) return fail(detail, GLT_BAD_ARG, replace);
  const int64_t base = *ws->table_base, gids = num_nodes(*graph);
  if (trees && !is_sound(*trees, gids, replace != 0)) return fail(detail, GLT_BAD_ARG, trees->num_trees, gids);
  const Call call{*graph, *ws, num_hops, fanouts, batch_key, replace != 0, threads, excluded, trees, detail};
  const int64_t ids = trees ? std::max<int64_t>(1, trees->num_trees) * gids : gids;
  *ws->table_base = 0;  // unless the whole batch is entered
  const auto run = [&](auto id, const auto& lids, auto with_trees) {
    return KHop<decltype(id), std::decay_t<decltype(lids)>, with_trees.value>(call, lids).run(seeds, num_seeds);
  };
  const auto run_with = [&](const auto& lids, auto with_trees) {
    return graph->id_bytes == 4 ? run(int32_t(), lids, with_trees) : run(int64_t(), lids, with_trees);
  };
  const auto run_hashed = [&](auto with_trees) {
    if (ids < INT64_C(0xffffffff)) return run_with(Table<NarrowSlot>(ws->table, ws->table_cap, ids), with_trees);
    return run_with(Table<WideSlot>(ws->table, ws->table_cap, ids), with_trees);
  };
  if (trees) return run_hashed(std::true_type());
  if (ws->table_cap >= ids) return run_with(DirectTable(ws->table, ids, base), std::false_type());
  return run_hashed(std::false_type());
}
GLT_CATCH(detail)
