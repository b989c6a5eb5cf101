// Random walks over the stored rows: a step leads from a node to the source of one of the edges into it. Draws depend on nothing
// but the walk's stream and the number of the step, so that a walk which leaves the parts that are mapped here can go on
// elsewhere.
#include <glt/api.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "excluded.h"
#include "guard.h"
#include "locate.h"
#include "threads.h"
#include "walk.h"

namespace glt {
namespace {

constexpr int kLanes = 128;  // walks that a thread steps together, so that their cache misses overlap

struct Walks {
  const glt_walk_rule& rule;
  const int64_t* roots;
  const uint64_t* streams;
  int64_t* at;
  int32_t* step;
  int64_t* trace;
  const std::vector<std::optional<ExcludedRows>>& excluded;  // [num_edge_types], or none

  ExcludedRow excluded_of(int32_t edge_type, int64_t gid) const {
    return excluded.empty() || !excluded[edge_type] ? ExcludedRow{nullptr, 0} : excluded[edge_type]->of(gid);
  }

  void end(int64_t i) const {
    at[i] = -1;
    step[i] = rule.length;
  }
};

struct Lane {
  int64_t walk;
  int32_t edge_type = 0, part = 0;
  const int64_t* row = nullptr;
  const int32_t* sums = nullptr;
  const void* entry = nullptr;
  int64_t degree = 0;
  ExcludedRow excluded{nullptr, 0};
};

// Finds the row of each walk's next step, and keeps only the lanes of walks that take one. Returns a glt_status, as do the next
// two functions.
int32_t open(const glt_graph& g, const Walks& w, std::vector<Lane>& lanes, int64_t* detail) {
  size_t kept = 0;
  for (Lane lane : lanes) {
    const int64_t i = lane.walk;
    const int32_t step = w.step[i];
    if (step >= w.rule.length) continue;
    if (restarts(w.rule, w.streams[i], step)) {
      if (w.rule.ends) {
        w.end(i);
        continue;
      }
      w.at[i] = w.roots[i];
    }
    lane.edge_type = w.rule.edge_types[step % w.rule.num_types];
    const int32_t type = g.dst_type[lane.edge_type];
    const int64_t gid = w.at[i];
    if (!TypeRange(g, type).has(gid)) return fail(detail, GLT_BAD_ID, i, gid);
    const int32_t s = segment_of(g, gid);
    const RowPlace place(g, lane.edge_type, s, gid);
    lane.part = place.part;
    if (!g.indptr[lane.part]) continue;  // it goes on elsewhere
    lane.row = g.indptr[lane.part] + place.row;
    prefetch(lane.row);
    lanes[kept++] = lane;
  }
  lanes.resize(kept);
  return GLT_OK;
}

// Draws the entry of each walk's row without weights, and prefetches the sums of rows with weights. Walks without an entry end.
template <class Id>
int32_t draw_entries(const glt_graph& g, const Walks& w, std::vector<Lane>& lanes, int64_t* detail) {
  size_t kept = 0;
  for (Lane lane : lanes) {
    const int64_t begin = lane.row[0], end = lane.row[1];
    if (!is_sound_row(begin, end, g.num_edges[lane.part]))
      return fail(detail, GLT_BAD_ROW, lane.edge_type, w.at[lane.walk], begin, end);
    lane.degree = end - begin;
    lane.excluded = w.excluded_of(lane.edge_type, w.at[lane.walk]);
    if (!left_of(lane.degree, lane.excluded)) {
      w.end(lane.walk);
      continue;
    }
    lane.sums = g.sums && g.sums[lane.part] ? g.sums[lane.part] + begin : nullptr;
    const Id* row = static_cast<const Id*>(g.indices[lane.part]) + begin;
    if (lane.sums) prefetch(lane.sums + lane.degree - 1);
    else row += entry_of({nullptr, lane.degree, lane.excluded}, w.streams[lane.walk], w.step[lane.walk]);
    lane.entry = row;
    if (!lane.sums) prefetch(lane.entry);
    lanes[kept++] = lane;
  }
  lanes.resize(kept);
  return GLT_OK;
}

template <class Id>
int32_t take_steps(const glt_graph& g, const Walks& w, std::vector<Lane>& lanes, int64_t* detail) {
  for (Lane& lane : lanes) {
    const int64_t i = lane.walk;
    const Id* entry = static_cast<const Id*>(lane.entry);
    if (lane.sums) {
      const int64_t position = entry_of({lane.sums, lane.degree, lane.excluded}, w.streams[i], w.step[i]);
      if (position < 0) {
        w.end(i);
        continue;
      }
      entry += position;
    }
    const int64_t next = int64_t(*entry) + source_shift(g, lane.edge_type);
    if (!TypeRange(g, g.src_type[lane.edge_type]).has(next)) return fail(detail, GLT_BAD_ROW, lane.edge_type, -1, next);
    w.trace[i * w.rule.length + w.step[i]++] = w.at[i] = next;
  }
  return GLT_OK;
}

struct Failure {
  int32_t status = GLT_OK;
  int64_t detail[4] = {0, 0, 0, 0};
};

template <class Id>
int32_t walk(const glt_graph& g, const Walks& w, const int64_t* which, int64_t n, int32_t threads, int64_t* detail) {
  std::vector<Failure> failed(std::max(1, threads));
  parallel(n, threads, 4 * kLanes, [&](int64_t begin, int64_t end, int index) {
    Failure& mine = failed[index];
    std::vector<Lane> lanes;
    for (int64_t first = begin; first < end; first += kLanes) {
      lanes.clear();
      for (int64_t k = first; k < std::min<int64_t>(end, first + kLanes); ++k) lanes.push_back({which ? which[k] : k});
      while (!lanes.empty()) {
        mine.status = open(g, w, lanes, mine.detail);
        if (!mine.status) mine.status = draw_entries<Id>(g, w, lanes, mine.detail);
        if (!mine.status) mine.status = take_steps<Id>(g, w, lanes, mine.detail);
        if (mine.status) return;
      }
    }
  });
  for (const Failure& f : failed)
    if (f.status) return fail(detail, f.status, f.detail[0], f.detail[1], f.detail[2], f.detail[3]);
  return GLT_OK;
}

// The distinct nodes that the walks of one root visit, in the order of their first visits, with numbers of visits.
struct Visited {
  std::vector<int64_t> ids;
  std::vector<int32_t> counts, slots;

  void clear(int64_t most) {
    size_t size = 16;
    while (int64_t(size) < 2 * most) size *= 2;
    slots.assign(size, -1);
    ids.clear();
    counts.clear();
  }

  void add(int64_t id) {
    const size_t mask = slots.size() - 1;
    for (size_t s = size_t(mix(uint64_t(id))) & mask;; s = (s + 1) & mask) {
      if (slots[s] < 0) {
        slots[s] = int32_t(ids.size());
        ids.push_back(id);
        counts.push_back(1);
        return;
      }
      if (ids[slots[s]] == id) {
        ++counts[slots[s]];
        return;
      }
    }
  }
};

}  // namespace
}  // namespace glt

int32_t glt_walk_streams(const int64_t* user_ids, const int32_t* trees, int64_t num_roots, int32_t walks, uint64_t key,
                         uint64_t* streams, int64_t* detail) try {
  for (int64_t i = 0; i < num_roots; ++i)
    for (int32_t w = 0; w < walks; ++w) streams[i * walks + w] = glt::walk_stream(key, trees, i, w, user_ids[i]);
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_walk(const glt_graph* graph, const glt_walk_rule* rule, const glt_excluded* excluded, const int64_t* roots,
                 const uint64_t* streams, const int64_t* which, int64_t n, int32_t threads, int64_t* at, int32_t* step,
                 int64_t* trace, int64_t* detail) try {
  if (rule->num_types < 1 || rule->length < 0) return glt::fail(detail, GLT_BAD_ARG, rule->num_types, rule->length);
  for (int32_t k = 0; k < rule->num_types; ++k)
    if (rule->edge_types[k] < 0 || rule->edge_types[k] >= graph->num_edge_types)
      return glt::fail(detail, GLT_BAD_ARG, rule->edge_types[k]);
  std::vector<std::optional<glt::ExcludedRows>> without(excluded ? graph->num_edge_types : 0);
  for (size_t r = 0; r < without.size(); ++r)
    if (excluded[r].num_rows) without[r].emplace(excluded[r]);
  const glt::Walks walks{*rule, roots, streams, at, step, trace, without};
  return (graph->id_bytes == 4 ? glt::walk<int32_t> : glt::walk<int64_t>)(*graph, walks, which, n, threads, detail);
}
GLT_CATCH(detail)

int32_t glt_count_visits(const int64_t* trace, int64_t num_roots, int32_t walks, int32_t length, int32_t every,
                         const int64_t* roots, int64_t most, int32_t threads, int64_t* counts, int64_t* ids, int64_t* visits,
                         int64_t* detail) try {
  if (every < 1 || most < 1) return glt::fail(detail, GLT_BAD_ARG, every, most);
  glt::parallel(num_roots, threads, 64, [&](int64_t begin, int64_t end, int) {
    glt::Visited found;
    std::vector<int32_t> order;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t* steps = trace + i * walks * length;
      found.clear(int64_t(walks) * (length / every));
      for (int32_t w = 0; w < walks; ++w)
        for (int32_t j = every - 1; j < length; j += every) {
          const int64_t id = steps[int64_t(w) * length + j];
          if (id >= 0 && !(roots && id == roots[i])) found.add(id);
        }
      order.resize(found.ids.size());
      for (size_t k = 0; k < order.size(); ++k) order[k] = int32_t(k);
      const size_t kept = std::min<size_t>(order.size(), size_t(most));
      std::partial_sort(order.begin(), order.begin() + kept, order.end(), [&](int32_t a, int32_t b) {
        return found.counts[a] != found.counts[b] ? found.counts[a] > found.counts[b] : a < b;
      });
      counts[i] = int64_t(kept);
      for (size_t k = 0; k < kept; ++k) {
        ids[i * most + int64_t(k)] = found.ids[order[k]];
        visits[i * most + int64_t(k)] = found.counts[order[k]];
      }
    }
  });
  return GLT_OK;
}
GLT_CATCH(detail)
