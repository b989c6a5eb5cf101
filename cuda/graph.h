// Reading the graph descriptor.
#pragma once
#include <glt/api.h>

#include "hd.h"
#include "rank.h"

namespace glt {

// Always inlined: a call that does nothing else is dropped by compilers.
__attribute__((always_inline)) inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Into the second-level cache alone: for hops, whose misses are more than the first one queues. On Zen 4 batches of a graph beyond
// all caches take 0.89 of the time, those of a graph inside them 1.05.
__attribute__((always_inline)) inline void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

GLT_HD int64_t num_nodes(const glt_graph& g) { return g.bounds[g.num_types * g.num_parts]; }

GLT_HD int32_t segment_of(const glt_graph& g, int64_t gid) {
  int32_t s = g.hint[gid >> g.shift];
  while (gid >= g.bounds[s + 1]) ++s;
  return s;
}

// gids of one node type
struct TypeRange {
  int64_t begin, size;
  GLT_HD TypeRange(const glt_graph& g, int32_t type)
      : begin(g.bounds[type * g.num_parts]), size(g.bounds[(type + 1) * g.num_parts] - begin) {}
  GLT_HD bool has(int64_t gid) const { return uint64_t(gid - begin) < uint64_t(size); }
};

// What is added to the stored sources of an edge type to get gids.
GLT_HD int64_t source_shift(const glt_graph& g, int32_t edge_type) { return g.source_shift ? g.source_shift[edge_type] : 0; }

// The number of a node among those whose rows an overlay replaces, or -1.
inline int64_t find_replaced(const glt_replaced& r, int64_t gid) {
  gid -= r.moved;
  if (r.blocks) {
    const uint64_t at = uint64_t(gid - r.first);
    return at < uint64_t(r.num_ids) ? find_rank(r.blocks, at, CountBits()) : -1;
  }
  if (!r.num_rows || gid < 0 || gid > r.gids[r.num_rows - 1]) return -1;
  const int32_t* bucket = r.hint + (gid >> r.shift);
  int64_t low = bucket[0], high = bucket[1];
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (r.gids[middle] < gid) low = middle + 1;
    else high = middle;
  }
  return low < bucket[1] && r.gids[low] == gid ? low : -1;
}

// Where the row of a node of an edge type's destination type is. s: the segment of the node.
struct RowPlace {
  int32_t part;  // edge_type * P + part
  int64_t row;

  RowPlace(const glt_graph& g, int32_t edge_type, int32_t s, int64_t gid)
      : part((edge_type - g.dst_type[edge_type]) * g.num_parts + s), row(gid - g.bounds[s]) {
    for (const glt_replaced* r = g.replaced ? g.replaced + edge_type : nullptr; r;
         r = static_cast<const glt_replaced*>(r->below)) {
      const int64_t at = find_replaced(*r, gid);
      if (at < 0) continue;
      row = at + r->offset[part - edge_type * g.num_parts];
      part += r->num_parts;
      return;
    }
  }
};

// -1: all neighbours; 0: none, where a hop may leave an edge type out.
GLT_HD bool is_fanout(int64_t fanout) { return fanout >= -1 && fanout <= GLT_MAX_FANOUT; }

// Positions are 32-bit, and a row lies inside its part's array.
GLT_HD bool is_sound_row(int64_t begin, int64_t end, int64_t num_edges) {
  return begin >= 0 && end >= begin && end <= num_edges && end - begin <= INT32_MAX;
}

inline int32_t fail(int64_t* detail, int32_t status, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
  if (detail) detail[0] = a, detail[1] = b, detail[2] = c, detail[3] = d;
  return status;
}

}  // namespace glt
