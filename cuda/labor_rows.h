// Picks by LABOR, for a host.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "labor.h"

namespace glt {

struct LaborEntry {
  uint64_t number;
  uint32_t position;

  bool operator<(const LaborEntry& b) const { return number != b.number ? number < b.number : position < b.position; }
};

// So many entries before one is looked at its user id is fetched: as many as a processor fetches at once, and some more.
constexpr int64_t kLaborAhead = 32;

template <class Id>
void prefetch_source(const LaborRow<Id>& row, int64_t position) {
  const int64_t at = int64_t(row.neighbors[position]) - row.first_gid;
  prefetch(row.user_ids + (uint64_t(at) < uint64_t(row.num_gids) ? at : 0));
}

// The first sources of a row that is drawn next.
template <class Id>
void prefetch_sources(const LaborRow<Id>& row) {
  for (int64_t i = 0; i < std::min(kLaborAhead, row.entries.length); ++i) prefetch_source(row, i);
}

// Those entries of a row whose numbers are at most `bound`, but of many of them the smallest ones alone; at least `count` where
// there are so many. Returns their number. Without a branch on numbers, but where memory for them is full.
template <class Id>
size_t collect_smallest(const LaborRow<Id>& row, uint32_t count, uint64_t bound, std::vector<LaborEntry>& found) {
  const size_t room = std::max<size_t>(2 * size_t(count), 64);
  if (found.size() < room + 1) found.resize(room + 1);
  LaborEntry* const first = found.data();
  size_t n = 0;
  const LaborRow<Id> same = row;
  const int64_t last = row.entries.length - 1;
  row.each(
      [&](uint64_t number, int64_t position) {
        first[n] = {number, uint32_t(position)};
        n += number <= bound;
        if (n < room) return;
        std::nth_element(first, first + count - 1, first + n);
        bound = first[count - 1].number;
        n = count;
      },
      [&](int64_t position) { prefetch_source(same, std::min(position + kLaborAhead, last)); });
  return n;
}

// `count` positions, ascending; as many can be picked.
template <class Id>
void pick_by_labor(const LaborRow<Id>& row, uint32_t count, uint32_t* out, std::vector<LaborEntry>& found) {
  // Nearly always enough entries lie below the share of them that is picked and 2.5 times its spread: then the others cost their
  // numbers alone. It decides how long it takes, not what is picked.
  const double all = row.entries.sums ? row.entries.left() : double(row.entries.length - row.entries.excluded.n);
  const double share = (count + 2.5 * std::sqrt(double(count)) + 2) / all;
  size_t n = share < 1 ? collect_smallest(row, count, uint64_t(share * 0x1p64), found) : 0;
  if (n < count) n = collect_smallest(row, count, UINT64_MAX, found);
  if (n > count) std::nth_element(found.begin(), found.begin() + count - 1, found.begin() + n);
  for (uint32_t i = 0; i < count; ++i) out[i] = found[i].position;
  std::sort(out, out + count);
}

}  // namespace glt
