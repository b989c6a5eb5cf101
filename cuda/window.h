// The entries of a row that can be drawn in a tree of a disjoint batch: those with since <= time <= until. The times of a row
// ascend, so these are neighbours. A row whose times are damaged gives a wrong window, but none outside the row.
#pragma once
#include <glt/api.h>

#include "excluded.h"

namespace glt {

// The number of leading times that are below the bound (or, with kEqual, at it).
template <bool kEqual>
GLT_HD int64_t times_below(const int64_t* times, int64_t n, int64_t bound) {
  int64_t low = 0;
  while (n > 0) {  // without a branch on what is read
    const int64_t half = n / 2, time = times[low + half];
    const bool below = kEqual ? time <= bound : time < bound;
    low += below ? half + 1 : 0;
    n = below ? n - half - 1 : half;
  }
  return low;
}

// False if a batch cannot have these trees: a node and its tree must fit into one integer, and the latest entries (`last`), which
// are not drawn, cannot be picked with replacement.
inline bool is_sound(const glt_trees& trees, int64_t num_nodes, bool replace) {
  const bool fit = trees.num_trees >= 0 && (num_nodes == 0 || trees.num_trees <= (INT64_MAX - 1) / num_nodes);
  return fit && !(trees.last && replace);
}

struct TimeWindow {
  int64_t begin, end;  // positions in the row
};

GLT_HD TimeWindow window_of(const int64_t* times, int64_t n, const glt_trees& trees, int32_t tree) {
  const int64_t end = trees.until ? times_below<true>(times, n, trees.until[tree]) : n;
  return {trees.since ? times_below<false>(times, end, trees.since[tree]) : 0, end};
}

// True if trees restrict rows that have times.
GLT_HD bool has_windows(const glt_trees* trees) { return trees && (trees->since || trees->until); }

// The excluded entries of a row that lie in a window, from its begin on.
GLT_HD ExcludedRow within(const ExcludedRow& excluded, const TimeWindow& window) {
  int64_t first = 0, last = excluded.n;
  while (first < last && excluded.at(first) < window.begin) ++first;
  while (last > first && excluded.at(last - 1) >= window.end) --last;
  return {excluded.positions + first, last - first, excluded.from + window.begin};
}

}  // namespace glt
