// A whole k-hop batch in one call.
//
// Each hop runs in stages over blocks of rows that stay in the first-level cache: row pointers, positions, neighbour
// ids, relabelling; each stage prefetches for the next. Rows may be sampled by several threads; local ids are given in
// frontier order by one, so the result does not depend on the number of threads.
#include <glt/api.h>

#include <atomic>
#include <vector>

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
  int64_t* detail;
};

template <class Id, class Slot>
class KHop {
 public:
  explicit KHop(const Call& call)
      : c(call),
        g(call.g),
        ws(call.ws),
        table(ws.table, ws.table_cap, num_nodes(g)),
        lo(g.num_types, 0),
        hi(g.num_types, 0),
        nodes(g.num_types, 0),
        edges(g.num_relations, 0) {}

  int32_t run(const int64_t* seeds, int64_t num_seeds, int32_t seed_type) {
    table.clear();
    int32_t status = add_seeds(seeds, num_seeds, seed_type);
    if (!status) status = close_hop(0);
    for (int32_t h = 0; h < c.num_hops && !status; ++h) {
      for (int32_t r = 0; r < g.num_relations && !status; ++r) {
        const int64_t before = edges[r];
        status = expand(h, r);
        ws.edges_per_hop[r * c.num_hops + h] = edges[r] - before;
      }
      if (!status) status = close_hop(h + 1);
    }
    return status;
  }

 private:
  int32_t add_seeds(const int64_t* seeds, int64_t n, int32_t type) {
    const TypeRange range(g, type);
    if (n > ws.node_cap[type]) return fail(c.detail, GLT_GROW, 2, type, n);
    if (n > table.limit()) return fail(c.detail, GLT_GROW, 0, 0, 2 * n);
    for (int64_t i = 0; i < n; ++i) {
      if (!range.has(seeds[i])) return fail(c.detail, GLT_BAD_ID, i, seeds[i]);
      Slot& slot = table.find(seeds[i]);
      if (slot.empty()) slot.set(seeds[i], int32_t(i));
      ws.gid[type][i] = seeds[i];
    }
    nodes[type] = total = n;
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
        prefetch(at[k]);
      }
      for (int64_t k = 0; k < n; ++k) ws.uid[t][i + k] = int64_t(*at[k]);
    }
    return -1;
  }

  int32_t expand(int32_t h, int32_t r) {
    const int32_t fanout = c.fanouts[h * g.num_relations + r], type = g.dst_type[r];
    if (fanout == 0 || lo[type] == hi[type]) return GLT_OK;
    const RowRequest q{&g, r, fanout, c.replace, hop_key(c.batch_key, h, g.key[r])};
    const bool wide = c.threads > 1 && fanout > 0 && hi[type] - lo[type] >= 2048;
    for (int64_t row = lo[type]; row < hi[type];) {
      const int32_t status = wide ? step_threads(q, type, &row) : step(q, type, &row);
      if (status) return status;
    }
    return GLT_OK;
  }

  // A few rows on this thread.
  int32_t step(const RowRequest& q, int32_t type, int64_t* row) {
    const bool with_edge = ws.edge_row[q.relation] != nullptr;
    const int64_t cap = with_edge ? ws.scratch_cap / 2 : ws.scratch_cap;
    spare.resize(q.fanout > 0 ? q.fanout : 1);
    Slice s{*row, std::min(*row + kBlock, hi[type]), ws.scratch, nullptr, cap};
    if (with_edge) s.edge_rows = reinterpret_cast<int64_t*>(ws.scratch + cap);
    sample_slice<Id>(q, ws.gid[type], ws.uid[type], spare.data(), s);
    *row = s.end;
    return relabel(q, s);
  }

  // As many rows as the scratch memory takes, divided over the threads; relabelled in order by this one.
  int32_t step_threads(const RowRequest& q, int32_t type, int64_t* row) {
    const bool with_edge = ws.edge_row[q.relation] != nullptr;
    const int64_t stride = (int64_t(q.fanout) + 1) * (with_edge ? 2 : 1);
    const int64_t n = std::min(hi[type] - *row, ws.scratch_cap / stride);
    if (n < 1) return fail(c.detail, GLT_GROW, 1, 0, 1024 * stride);
    std::vector<Slice> slices(c.threads);
    parallel(n, c.threads, 512, [&](int64_t begin, int64_t end, int index) {
      const int64_t cap = (end - begin) * (q.fanout + 1);
      uint64_t* memory = ws.scratch + begin * stride;
      std::vector<uint32_t> own(q.fanout);
      Slice s{*row + begin, *row + end, memory, nullptr, cap};
      if (with_edge) s.edge_rows = reinterpret_cast<int64_t*>(memory + cap);
      sample_slice<Id>(q, ws.gid[type], ws.uid[type], own.data(), s);
      slices[index] = s;
    });
    for (const Slice& s : slices) {
      const int32_t status = relabel(q, s);
      if (status) return status;
    }
    *row += n;
    return GLT_OK;
  }

  int32_t relabel(const RowRequest& q, const Slice& s) {
    if (s.status) return fail(c.detail, s.status, s.detail[0], s.detail[1], s.detail[2], s.detail[3]);
    constexpr int64_t kAhead = 24;
    const int32_t r = q.relation, type = g.src_type[r];
    int64_t e = edges[r], n = nodes[type];
    const int64_t node_cap = ws.node_cap[type], spare_slots = table.limit() - total, first = n;
    int64_t* gids = ws.gid[type];
    int64_t* edge_row = ws.edge_row[r];
    const uint64_t *at = s.entries, *end = s.entries + s.used;
    for (const uint64_t* p = at; p < std::min(at + kAhead, end); ++p) table.prefetch(int64_t(*p));
    for (int64_t row = s.begin; row < s.end; ++row) {
      const int64_t count = int64_t(*at++);
      if (e + count > ws.edge_cap[r]) {
        const int64_t rest = q.fanout > 0 ? (hi[g.dst_type[r]] - row) * q.fanout : count;
        return fail(c.detail, GLT_GROW, 3, r, std::max(e + rest, 2 * ws.edge_cap[r]));
      }
      if (edge_row) std::memcpy(edge_row + e, s.edge_rows + (at - s.entries), count * sizeof(int64_t));
      for (const uint64_t* stop = at + count; at < stop; ++at, ++e) {
        if (at + kAhead < end) table.prefetch(int64_t(at[kAhead]));
        Slot& slot = table.find(int64_t(*at));
        if (slot.empty()) {
          if (n >= node_cap) return fail(c.detail, GLT_GROW, 2, type, 2 * (n + 1));
          if (n - first >= spare_slots) return fail(c.detail, GLT_GROW, 0, 0, 2 * ws.table_cap);
          slot.set(int64_t(*at), int32_t(n));
          gids[n++] = int64_t(*at);
        }
        ws.src[r][e] = slot.lid();
        ws.dst[r][e] = int32_t(row);
      }
    }
    total += n - first;
    edges[r] = e;
    nodes[type] = n;
    return GLT_OK;
  }

  const Call& c;
  const glt_graph& g;
  const glt_workspace& ws;
  Table<Slot> table;
  std::vector<int64_t> lo, hi, nodes, edges;  // frontier [lo, hi) and counts, per type; edges per relation
  std::vector<uint32_t> spare;
  int64_t total = 0;
};

}  // namespace
}  // namespace glt

int32_t glt_khop(const glt_graph* graph, const int64_t* seeds, int64_t num_seeds, int32_t seed_type, int32_t num_hops,
                 const int32_t* fanouts, uint64_t batch_key, int32_t replace, int32_t threads, const glt_workspace* ws,
                 int64_t* detail) {
  using namespace glt;
  if (seed_type < 0 || seed_type >= graph->num_types || num_hops < 0 || num_hops > GLT_MAX_HOPS || ws->table_cap < 2)
    return fail(detail, GLT_BAD_ARG, seed_type, num_hops, ws->table_cap);
  const Call call{*graph, *ws, num_hops, fanouts, batch_key, replace != 0, threads, detail};
  const bool narrow = num_nodes(*graph) < INT64_C(0xffffffff);
  if (graph->id_bytes == 4) return KHop<int32_t, NarrowSlot>(call).run(seeds, num_seeds, seed_type);
  if (narrow) return KHop<int64_t, NarrowSlot>(call).run(seeds, num_seeds, seed_type);
  return KHop<int64_t, WideSlot>(call).run(seeds, num_seeds, seed_type);
}
