// Picks by LABOR, for a device: one lane goes through all entries of a row; each warp has a row.
#pragma once
#include "labor.h"

namespace glt {

// The smallest entries that were offered, at most `room`: a heap whose first entry is the greatest. Words alone, so that any memory
// will do: room of each.
struct SmallestEntries {
  uint32_t *high, *low, *position;
  uint32_t room, n = 0;

  GLT_DEVICE uint64_t number(uint32_t i) const { return uint64_t(high[i]) << 32 | low[i]; }
  GLT_DEVICE void set(uint32_t i, uint64_t its_number, uint32_t its_position) {
    high[i] = uint32_t(its_number >> 32), low[i] = uint32_t(its_number), position[i] = its_position;
  }
  GLT_DEVICE bool below(uint64_t a, uint32_t at, uint32_t i) const { return a != number(i) ? a < number(i) : at < position[i]; }

  GLT_DEVICE void offer(uint64_t its_number, uint32_t its_position) {
    if (n < room) return rise(n++, its_number, its_position);
    if (below(its_number, its_position, 0)) sink(its_number, its_position);
  }

 private:
  GLT_DEVICE void rise(uint32_t i, uint64_t its_number, uint32_t its_position) {
    for (; i && !below(its_number, its_position, (i - 1) / 2); i = (i - 1) / 2)
      set(i, number((i - 1) / 2), position[(i - 1) / 2]);
    set(i, its_number, its_position);
  }

  // Replaces the first entry, the greatest, and restores the heap.
  GLT_DEVICE void sink(uint64_t its_number, uint32_t its_position) {
    uint32_t i = 0;
    for (uint32_t next = 1; next < n; next = 2 * i + 1) {
      if (next + 1 < n && below(number(next), position[next], next + 1)) ++next;
      if (!below(its_number, its_position, next)) break;
      set(i, number(next), position[next]);
      i = next;
    }
    set(i, its_number, its_position);
  }
};

// `count` positions, in any order; as many can be picked. memory: 3 * count words, of which the second `count` are the positions.
template <class Id>
GLT_DEVICE void pick_by_labor(const LaborRow<Id>& row, uint32_t count, uint32_t* memory) {
  SmallestEntries smallest{memory, memory + 2 * count, memory + count, count};
  row.each([&](int64_t position, uint32_t weight) { smallest.offer(row.number(position) / weight, uint32_t(position)); });
}

}  // namespace glt
