// Picks by weight. The entries of a row have inclusive prefix sums; a draw below the last of them falls into one entry, which
// is picked. Without replacement an entry that is taken leaves the range, and a draw moves past the entries taken before it: so
// each pick is proportional to the weights that are left. Entries of weight 0 are never picked. Integers alone: the same
// picks on every device. A row whose sums are damaged gives wrong picks, but none outside the row.
#pragma once
#include "excluded.h"
#include "random.h"

namespace glt {

struct WeightedRow {
  const int32_t* sums;  // null: a row of which all entries weigh the same
  int64_t length;       // with excluded entries
  ExcludedRow excluded;
  uint32_t base = 0;    // sum of what lies before the first entry, where that is not the row's first

  GLT_HD uint32_t through(int64_t p) const { return uint32_t(sums[p]) - base; }
  GLT_HD uint32_t before(int64_t p) const { return p ? through(p - 1) : 0; }
  GLT_HD uint32_t weight(int64_t p) const { return through(p) - before(p); }
  GLT_HD uint32_t total() const { return length ? through(length - 1) : 0; }

  // The sum of the weights that can be drawn.
  GLT_HD uint32_t left() const {
    uint32_t taken = 0;
    for (int64_t k = 0; k < excluded.n; ++k) taken += weight(excluded.at(k));
    return total() - taken;
  }

  // The first entry from `from` on whose sum is above the mass, which the last one's is.
  GLT_HD int64_t find(uint32_t mass, int64_t from = 0) const {
    int64_t low = from;
    for (int64_t n = length - from; n > 1;) {  // without a branch: a processor cannot predict whether a draw goes left or right
      const int64_t half = n / 2;
      low += through(low + half - 1) <= mass ? half : 0;
      n -= half;
    }
    return low;
  }

  // Calls visit(position, rank) for the entries of positive weight that are not excluded, `most` of them at most; returns how
  // many. Runs of entries without weight are leapt over.
  template <class Visit>
  GLT_HD int64_t each_positive(int64_t most, const Visit& visit) const {
    const uint32_t all = total();
    uint32_t mass = 0;
    int64_t rank = 0, k = 0;
    for (int64_t p = 0; p < length && rank < most; ++p) {
      if (through(p) <= mass) {
        if (all <= mass) break;
        p = find(mass, p);
      }
      mass = through(p);
      while (k < excluded.n && excluded.at(k) < p) ++k;
      if (k < excluded.n && excluded.at(k) == p) continue;
      visit(p, rank++);
    }
    return rank;
  }

  GLT_HD int64_t count(int32_t fanout, bool replace) const {
    if (replace && fanout >= 0) return left() ? fanout : 0;
    return each_positive(fanout < 0 ? length : fanout, [](int64_t, int64_t) {});
  }

  // True if the picks are all entries of positive weight, so that nothing is drawn. picks: their number.
  GLT_HD bool takes_all(int64_t picks, int32_t fanout, bool replace) const {
    return fanout < 0 || (!replace && (length <= fanout || picks < fanout));
  }
};

// `count` distinct positions, ascending. Takes count^2 / 2 steps beside the searches.
GLT_HD void pick_weighted(const WeightedRow& row, uint64_t stream, uint32_t count, uint32_t* out) {
  uint32_t left = row.left();
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t mass = left ? draw(stream, i, left) : 0, place = 0;
    for (int64_t k = 0;;) {  // past what is taken, in ascending order: excluded, or picked before
      const bool excluded = k < row.excluded.n && (place == i || row.excluded.at(k) < int64_t(out[place]));
      if (!excluded && place == i) break;
      const int64_t p = excluded ? row.excluded.at(k) : out[place];
      const uint32_t before = row.before(p);
      if (before > mass) break;
      mass += row.through(p) - before;
      excluded ? ++k : int64_t(++place);
    }
    const uint32_t pick = uint32_t(row.find(mass));
    for (uint32_t k = i; k > place; --k) out[k] = out[k - 1];
    out[place] = pick;
    left -= row.weight(pick);
  }
}

// Position of pick i with replacement.
GLT_HD uint32_t pick_repeatedly(const WeightedRow& row, uint64_t stream, uint32_t i, uint32_t left) {
  uint32_t mass = draw(stream, i, left);
  for (int64_t k = 0; k < row.excluded.n; ++k) {
    const int64_t p = row.excluded.at(k);
    if (row.before(p) > mass) break;
    mass += row.weight(p);
  }
  return uint32_t(row.find(mass));
}

}  // namespace glt
