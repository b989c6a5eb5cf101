// Picks by LABOR, for a host.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "labor.h"
#include "threads.h"
#include "wide.h"

namespace glt {

struct LaborEntry {
  uint64_t value;
  uint32_t position;

  bool operator<(const LaborEntry& b) const { return value != b.value ? value < b.value : position < b.position; }
};

// The first byte of the number of each node of a type in a hop, and a 0 at the end for ids that are no node. This byte alone
// rules out most entries of a row; only for the others the user id, which is not in a processor's caches, is read and hashed. On
// a graph of 2.4 M nodes, with 17.8 M entries a batch, a batch takes about half the time.
class FirstBytes {
 public:
  // Null if rows are too few: making a byte takes a tenth of the time that using it saves.
  template <class Id>
  const uint8_t* of(const glt_graph& g, int32_t edge_type, uint64_t key, int64_t num_rows, int32_t threads) {
    const int32_t type = g.src_type[edge_type];
    const TypeRange range(g, type);
    if (!bytes_.empty() && type == type_ && key == key_) return bytes_.data();
    if (double(num_rows) * mean_degree(g, edge_type) * 8 < double(range.size)) return nullptr;
    type_ = type, key_ = key;
    bytes_.resize(size_t(range.size) + 1);
    const int64_t num_ids = g.num_ids[type];
    const Bytes<Id> make{static_cast<const Id*>(g.all_ids[type]), key, bytes_.data()};
    parallel(num_ids, threads, 1 << 16, [&](int64_t begin, int64_t end, int) { run_products(make, begin, end); });
    if (num_ids < range.size) {
      const Bytes<Id> more{static_cast<const Id*>(g.more_ids[type]), key, bytes_.data() + num_ids};
      run_products(more, int64_t(0), range.size - num_ids);
    }
    bytes_[range.size] = 0;
    return bytes_.data();
  }

 private:
  template <class Id>
  struct Bytes {
    const Id* GLT_RESTRICT ids;
    uint64_t key;
    uint8_t* GLT_RESTRICT out;

    GLT_HD_INLINE void operator()(int64_t begin, int64_t end) const {
      const Id* GLT_RESTRICT from = ids;
      uint8_t* GLT_RESTRICT to = out;
      const uint64_t same = key;
      for (int64_t i = begin; i < end; ++i) to[i] = uint8_t(row_stream(same, int64_t(from[i])) >> 56);
    }
  };

  // Of the rows that are mapped.
  static double mean_degree(const glt_graph& g, int32_t edge_type) {
    int64_t edges = 0, rows = 0;
    for (int32_t p = 0; p < g.num_parts; ++p) {
      const int32_t part = edge_type * g.num_parts + p, s = g.dst_type[edge_type] * g.num_parts + p;
      if (!g.indptr[part]) continue;
      edges += g.num_edges[part], rows += g.bounds[s + 1] - g.bounds[s];
    }
    return rows ? double(edges) / double(rows) : 0;
  }

  std::vector<uint8_t> bytes_;
  int32_t type_ = -1;
  uint64_t key_ = 0;
};

// Number of entries by which user ids are prefetched: a little more than a processor loads at the same time.
constexpr int64_t kLaborAhead = 32;

template <class Id>
GLT_HD_INLINE void prefetch_source(const LaborRow<Id>& row, int64_t position) {
  const int64_t at = int64_t(row.neighbors[position]) - row.first_gid;
  prefetch(row.source(at));
}

// The first sources of a row that is drawn next.
template <class Id>
void prefetch_sources(const LaborRow<Id>& row) {
  for (int64_t i = 0; i < std::min(kLaborAhead, row.entries.length); ++i) prefetch_source(row, i);
}

// Collects the entries of a row whose values are at most `bound`; when its memory is full, it keeps only the smallest ones. It
// branches on values only then, since a processor cannot predict them.
class Smallest {
 public:
  Smallest(uint32_t count, uint64_t bound, std::vector<LaborEntry>& memory)
      : bound(bound), count_(count), room_(std::max<size_t>(2 * size_t(count), 64)) {
    if (memory.size() < room_ + 1) memory.resize(room_ + 1);
    first_ = memory.data();
  }

  void offer(uint64_t value, int64_t position) {
    first_[size] = {value, uint32_t(position)};
    size += value <= bound;
    if (size < room_) return;
    std::nth_element(first_, first_ + count_ - 1, first_ + size);
    bound = first_[count_ - 1].value;
    size = count_;
    in_order_ = false;
  }

  // The `count` smallest positions, ascending; as many were offered.
  void take(uint32_t* out) {
    if (size > count_ && size <= kFew && in_order_) return take_of_few(out);
    if (size > count_) std::nth_element(first_, first_ + count_ - 1, first_ + size);
    for (uint32_t i = 0; i < count_; ++i) out[i] = first_[i].position;
    if (!in_order_ || size > count_) std::sort(out, out + count_);
  }

  uint64_t bound;
  size_t size = 0;

 private:
  static constexpr size_t kFew = 32;

  // Compares all with all: for a dozen that is faster than a sort, whose branches are mispredicted.
  void take_of_few(uint32_t* out) const {
    uint32_t smaller[kFew] = {};
    for (size_t i = 1; i < size; ++i) {
      for (size_t k = 0; k < i; ++k) {
        const uint32_t first = first_[k].value <= first_[i].value;  // of equal ones the one that comes first
        smaller[i] += first;
        smaller[k] += 1 - first;
      }
    }
    for (size_t i = 0, n = 0; n < count_; ++i) {
      out[n] = first_[i].position;
      n += smaller[i] < count_;
    }
  }

  const uint32_t count_;
  const size_t room_;
  LaborEntry* first_;
  bool in_order_ = true;
};

// Offers all entries.
template <class Id>
void offer_all(const LaborRow<Id>& row, Smallest& found) {
  const LaborRow<Id> same = row;  // what is stored cannot change a copy
  const int64_t last = row.entries.length - 1;
  same.each([&](int64_t position, uint32_t weight) {
    prefetch_source(same, std::min(position + kLaborAhead, last));
    found.offer(same.number(position) / weight, position);
  });
}

// Offers the entries whose first bytes do not rule them out.
template <class Id>
void offer_likely(const LaborRow<Id>& row, const uint8_t* first_bytes, Smallest& found) {
  constexpr int64_t kAtOnce = 512;
  constexpr size_t kAhead = 16;
  uint32_t likely[kAtOnce];
  const auto look = [&](size_t n) {
    for (size_t i = 0; i < std::min(n, kAhead); ++i) prefetch_source(row, likely[i]);
    for (size_t i = 0; i < n; ++i) {
      prefetch_source(row, likely[std::min(i + kAhead, n - 1)]);
      found.offer(row.value(likely[i]), likely[i]);
    }
  };
  size_t n = 0;
  row.each([&](int64_t position, uint32_t weight) {
    const uint64_t at = uint64_t(int64_t(row.neighbors[position]) - row.first_gid);
    const uint64_t least = uint64_t(first_bytes[std::min(at, uint64_t(row.num_gids))]) << 56;
    likely[n] = uint32_t(position);
    n += least / weight <= found.bound;
    if (n == kAtOnce) look(n), n = 0;
  });
  look(n);
}

// The share of a row's entries among which its `count` picks are nearly always: 2.5 standard deviations more than they are.
inline double likely_share(uint32_t count, double entries) { return (count + 2.5 * std::sqrt(double(count)) + 2) / entries; }

// `count` positions, ascending; as many can be picked. first_bytes: null where there are none.
template <class Id>
void pick_by_labor(const LaborRow<Id>& row, const uint8_t* first_bytes, uint32_t count, uint32_t* out,
                   std::vector<LaborEntry>& found) {
  // Nearly always enough numbers lie below the bound. If too few do, all are offered: the bound affects the time, not the picks.
  const double all = row.entries.sums ? row.entries.left() : double(row.entries.length - row.entries.excluded.n);
  const double share = likely_share(count, all);
  if (share < 1) {
    Smallest smallest(count, uint64_t(share * 0x1p64), found);
    if (first_bytes) offer_likely(row, first_bytes, smallest);
    else offer_all(row, smallest);
    if (smallest.size >= count) return smallest.take(out);
  }
  Smallest smallest(count, UINT64_MAX, found);
  offer_all(row, smallest);
  smallest.take(out);
}

}  // namespace glt
