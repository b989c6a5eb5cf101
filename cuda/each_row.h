// The loop of a gather: finds the rows of ids in shards, some iterations ahead, and hands them to a body.
#pragma once
#include <algorithm>
#include <atomic>

#include "graph.h"
#include "shards.h"
#include "threads.h"

namespace glt {

// Calls body(row, i) for i in [begin, end). Returns the first position whose id has no row here, else end.
template <class Body>
int64_t each_row(const Shards& a, const int64_t* ids, int64_t begin, int64_t end, const Body& body) {
  constexpr int64_t kAhead = 16;
  const char* ring[kAhead];
  for (int64_t i = begin; i < std::min(begin + kAhead, end); ++i) {
    ring[i % kAhead] = a.has(ids[i]) ? a.row(ids[i]) : nullptr;
    if (ring[i % kAhead]) prefetch(ring[i % kAhead]);
  }
  for (int64_t i = begin; i < end; ++i) {
    const char* row = ring[i % kAhead];
    if (!row) return i;
    body(row, i);
    if (i + kAhead < end) {
      const int64_t id = ids[i + kAhead];
      const char* next = a.has(id) ? a.row(id) : nullptr;
      ring[i % kAhead] = next;
      if (next) prefetch(next);
    }
  }
  return end;
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
