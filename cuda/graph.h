// Reading the graph descriptor.
#pragma once
#include <glt/api.h>

#include "hd.h"

namespace glt {

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

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
