// Random walks, a thread for each: it runs until its walk ends or reaches a node whose row the device cannot read.
#include <glt/cuda.h>

#include "guard.h"
#include "locate.h"
#include "report.h"
#include "walk.h"

namespace glt {
namespace {

struct FindStreams {
  const int64_t* user_ids;
  const int32_t* trees;
  int32_t walks;
  uint64_t key;
  uint64_t* streams;

  GLT_DEVICE void operator()(int64_t i) const {
    const int64_t root = i / walks;
    streams[i] = walk_stream(key, trees, root, int32_t(i % walks), user_ids[root]);
  }
};

// Arrays over walks: their roots, the streams of their draws, their current nodes, their steps so far, and [length] their traces.
struct WalkArrays {
  glt_walk_rule rule;
  const int64_t* roots;
  const uint64_t* streams;
  int64_t* at;
  int32_t* step;
  int64_t* trace;
};

// One of them. It has ended where step is the length.
struct Walk {
  uint64_t stream;
  int64_t at;
  int32_t step;
};

template <class Id>
struct GoOn {
  glt_graph g;
  WalkArrays walks;
  const glt_excluded* excluded;  // [num_edge_types], or null
  int64_t* error;

  GLT_DEVICE void operator()(int64_t i) const {
    Walk walk{walks.streams[i], walks.at[i], walks.step[i]};
    while (sets_out(i, &walk))
      if (!takes_step(i, &walk)) break;
    walks.at[i] = walk.at, walks.step[i] = walk.step;
  }

  // True if the walk takes a step. A walk that restarts is moved to its root first, or, if the rule says so, ends instead.
  GLT_DEVICE bool sets_out(int64_t i, Walk* walk) const {
    if (walk->step >= walks.rule.length) return false;
    if (!restarts(walks.rule, walk->stream, walk->step)) return true;
    if (walks.rule.ends) return end(walk), false;
    walk->at = walks.roots[i];
    return true;
  }

  // Takes the step. False if the row is not here.
  GLT_DEVICE bool takes_step(int64_t i, Walk* walk) const {
    const int32_t edge_type = walks.rule.edge_types[walk->step % walks.rule.num_types];
    if (uint32_t(edge_type) >= uint32_t(g.num_edge_types)) return refuse(walk, GLT_BAD_ARG, edge_type, 0);
    Located row;
    const int32_t status = locate_row(g, edge_type, walk->at, &row);
    if (status == GLT_BAD_ID && TypeRange(g, g.dst_type[edge_type]).has(walk->at)) return false;
    if (status == GLT_BAD_ID) return refuse(walk, status, i, walk->at);
    if (status) return refuse(walk, status, edge_type, walk->at, row.begin, row.end);
    const ExcludedRow without = excluded ? excluded_of(excluded[edge_type], walk->at) : ExcludedRow{nullptr, 0};
    const int64_t entry = entry_of(weighted_row(g, row, without), walk->stream, walk->step);
    if (entry < 0) return end(walk), true;
    const int64_t next = int64_t(static_cast<const Id*>(g.indices[row.part])[row.begin + entry]);
    if (!TypeRange(g, g.src_type[edge_type]).has(next)) return refuse(walk, GLT_BAD_ROW, edge_type, -1, next);
    walks.trace[i * walks.rule.length + walk->step++] = walk->at = next;
    return true;
  }

  GLT_DEVICE bool refuse(Walk* walk, int32_t status, int64_t a, int64_t b, int64_t c = 0, int64_t d = 0) const {
    report(error, status, a, b, c, d);
    end(walk);
    return true;
  }

  GLT_DEVICE void end(Walk* walk) const { walk->at = -1, walk->step = walks.rule.length; }
};

}  // namespace
}  // namespace glt

int32_t glt_cuda_walk_streams(const int64_t* user_ids, const int32_t* trees, int64_t num_roots, int32_t walks, uint64_t key,
                              uint64_t* streams, int64_t* detail, void* stream) try {
  if (walks < 1) return glt::fail(detail, GLT_BAD_ARG, walks);
  return glt::for_each(num_roots * walks, glt::FindStreams{user_ids, trees, walks, key, streams}, stream, detail);
}
GLT_CATCH(detail)

int32_t glt_cuda_walk(const glt_graph* graph, const glt_walk_rule* rule, const glt_excluded* excluded, const int64_t* roots,
                      const uint64_t* streams, int64_t n, int64_t* at, int32_t* step, int64_t* trace, int64_t* error,
                      int64_t* detail, void* stream) try {
  if (rule->num_types < 1 || rule->length < 0) return glt::fail(detail, GLT_BAD_ARG, rule->num_types, rule->length);
  const glt::WalkArrays walks{*rule, roots, streams, at, step, trace};
  if (graph->id_bytes == 4) return glt::for_each(n, glt::GoOn<int32_t>{*graph, walks, excluded, error}, stream, detail);
  return glt::for_each(n, glt::GoOn<int64_t>{*graph, walks, excluded, error}, stream, detail);
}
GLT_CATCH(detail)
