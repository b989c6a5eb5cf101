// Entries of rows that are sampled as if they were not there: a row of d entries, e of them excluded, is drawn from as one of
// d - e entries, and a pick then moves past the excluded ones before it.
#pragma once
#include <glt/api.h>

#include <vector>

#include "random.h"

namespace glt {

// Excluded entries of one row: ascending positions, counted from an entry of the row.
struct ExcludedRow {
  const uint32_t* positions;
  int64_t n;
  int64_t from = 0;

  GLT_HD int64_t at(int64_t k) const { return int64_t(positions[k]) - from; }

  // Position in the whole row of pick p among the entries that are not excluded. A binary search, as at(k) - k never falls.
  GLT_HD int64_t past(int64_t p) const {
    int64_t low = 0;
    for (int64_t high = n; low < high;) {
      const int64_t middle = low + (high - low) / 2;
      if (at(middle) - middle <= p) low = middle + 1;
      else high = middle;
    }
    return p + low;
  }
};

// Finds the excluded entries of a node's row; most nodes have none.
GLT_HD ExcludedRow excluded_of(const glt_excluded& e, int64_t gid) {
  int64_t low = 0, high = e.num_rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (e.gids[middle] < gid) low = middle + 1;
    else high = middle;
  }
  if (low == e.num_rows || e.gids[low] != gid) return {nullptr, 0};
  return {e.positions + e.begin[low], e.begin[low + 1] - e.begin[low]};
}

// The number of entries of a row that are not excluded.
GLT_HD int64_t left_of(int64_t degree, const ExcludedRow& excluded) { return degree > excluded.n ? degree - excluded.n : 0; }

// Excluded entries for a host's loop over many rows: a filter of 16 bits a node rules out nearly all nodes without excluded
// entries, so that few rows need the search.
class ExcludedRows {
 public:
  explicit ExcludedRows(const glt_excluded& excluded) : excluded_(excluded) {
    int bits = 6;
    while ((int64_t(1) << bits) < 16 * excluded.num_rows) ++bits;
    shift_ = 64 - bits;
    filter_.assign(size_t(1) << (bits - 6), 0);
    for (int64_t i = 0; i < excluded.num_rows; ++i) {
      const uint64_t at = hash(excluded.gids[i]);
      filter_[at >> 6] |= uint64_t(1) << (at & 63);
    }
  }

  ExcludedRow of(int64_t gid) const {
    const uint64_t at = hash(gid);
    return filter_[at >> 6] >> (at & 63) & 1 ? excluded_of(excluded_, gid) : ExcludedRow{nullptr, 0};
  }

 private:
  uint64_t hash(int64_t gid) const { return uint64_t(gid) * kGolden >> shift_; }

  glt_excluded excluded_;
  int shift_;
  std::vector<uint64_t> filter_;
};

}  // namespace glt
