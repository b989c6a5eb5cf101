// The loop of a gather: finds the rows of ids in shards, some iterations ahead, and hands them to a body.
#pragma once
#include <algorithm>
#include <atomic>

#include "graph.h"
#include "shards.h"
#include "threads.h"

namespace glt {

// Prefetches a row into the second-level cache, of a long one the beginning: the processor's own prefetcher loads what follows.
// With the first line alone, into the first-level cache, rows of 400 bytes beyond all caches take 1.1 times as long (Zen 4).
GLT_HD_INLINE void prefetch_lines(const char* row, int64_t bytes) {
  constexpr int64_t kLine = 64, kMost = 16 * kLine;
  for (int64_t at = 0; at < std::min(bytes, kMost); at += kLine) prefetch_l2(row + at);
}

// find(id): the row of an id, null if it is not here.
template <class Find, class Body>
int64_t each_row(const Find& find, int64_t row_bytes, const int64_t* ids, int64_t begin, int64_t end, const Body& body) {
  constexpr int64_t kMostAhead = 64;
  const int64_t ahead = row_bytes > 64 ? 16 : kMostAhead;  // narrow rows take less time than fetching them
  const char* ring[kMostAhead];
  const auto fetch = [&](int64_t i) {
    const char* row = ring[i % kMostAhead] = find(ids[i]);
    if (row) prefetch_lines(row, row_bytes);
  };
  for (int64_t i = begin; i < std::min(begin + ahead, end); ++i) fetch(i);
  for (int64_t i = begin; i < end; ++i) {
    const char* row = ring[i % kMostAhead];
    if (!row) return i;
    body(row, i);
    if (i + ahead < end) fetch(i + ahead);
  }
  return end;
}

// Calls body(row, i) for i in [begin, end). Returns the first position whose id has no row here, else end.
template <class Body>
int64_t each_row(const Shards& a, const int64_t* ids, int64_t begin, int64_t end, const Body& body) {
  if (a.count != 1 || a.strides)
    return each_row([&](int64_t id) { return a.has(id) ? a.row(id) : nullptr; }, a.row_bytes, ids, begin, end, body);
  const char* const rows = static_cast<const char*>(a.data[0]);  // without a search rows of 400 bytes take 0.9 of the time
  const int64_t first = a.bounds[0], bytes = a.row_bytes;
  const uint64_t count = rows ? uint64_t(a.bounds[1] - first) : 0;
  const auto find = [=](int64_t id) { return uint64_t(id - first) < count ? rows + (id - first) * bytes : nullptr; };
  return each_row(find, bytes, ids, begin, end, body);
}

// Divides n ids among threads. range(begin, end) works as each_row; of several bad ids the first one is reported.
template <class Range>
int32_t share_rows(const int64_t* ids, int64_t n, int64_t row_bytes, int32_t threads, int64_t* detail, const Range& range) {
  std::atomic<int64_t> bad{n};
  const int64_t grain = std::max<int64_t>(256, (int64_t(1) << 18) / std::max<int64_t>(1, row_bytes));
  parallel(n, threads, grain, [&](int64_t begin, int64_t end, int) {
    const int64_t stopped = range(begin, end);
    int64_t seen = bad.load();
    while (stopped < end && stopped < seen && !bad.compare_exchange_weak(seen, stopped)) {
    }
  });
  return bad < n ? fail(detail, GLT_BAD_ID, bad, ids[bad]) : int32_t(GLT_OK);
}

}  // namespace glt
