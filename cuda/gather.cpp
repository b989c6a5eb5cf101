// Gathering rows of a sharded array. Bound by memory: rows of 400 bytes need no prefetch (measured), narrow ones do.
#include <glt/api.h>

#include <atomic>
#include <cstring>

#include "graph.h"
#include "shards.h"
#include "threads.h"

namespace glt {
namespace {

// kBytes > 0: row size known at compile time
template <int64_t kBytes>
int64_t copy_rows(const Shards& a, const int64_t* ids, int64_t begin, int64_t end, char* out) {
  constexpr int64_t kAhead = 16;
  const int64_t bytes = kBytes ? kBytes : a.row_bytes;
  auto source = [&](int64_t i) -> const char* { return a.has(ids[i]) ? a.row(ids[i]) : nullptr; };
  const char* ring[kAhead];
  for (int64_t i = begin; i < std::min(begin + kAhead, end); ++i) {
    ring[i % kAhead] = source(i);
    if (ring[i % kAhead]) prefetch(ring[i % kAhead]);
  }
  for (int64_t i = begin; i < end; ++i) {
    const char* from = ring[i % kAhead];
    if (!from) return i;
    std::memcpy(out + i * bytes, from, bytes);
    if (i + kAhead < end) {
      const char* next = source(i + kAhead);
      ring[i % kAhead] = next;
      if (next) prefetch(next);
    }
  }
  return end;
}

int64_t copy_range(const Shards& a, const int64_t* ids, int64_t begin, int64_t end, char* out) {
  switch (a.row_bytes) {
    case 1: return copy_rows<1>(a, ids, begin, end, out);
    case 4: return copy_rows<4>(a, ids, begin, end, out);
    case 8: return copy_rows<8>(a, ids, begin, end, out);
    default: return copy_rows<0>(a, ids, begin, end, out);
  }
}

}  // namespace
}  // namespace glt

int32_t glt_gather(const void* const* shards, const int64_t* bounds, int32_t num_shards, int64_t row_bytes,
                   const int64_t* ids, int64_t n, void* out, int32_t threads, int64_t* detail) {
  const glt::Shards a{shards, bounds, num_shards, row_bytes};
  std::atomic<int64_t> bad{n};
  const int64_t grain = std::max<int64_t>(256, (int64_t(1) << 18) / std::max<int64_t>(1, row_bytes));
  glt::parallel(n, threads, grain, [&](int64_t begin, int64_t end, int) {
    const int64_t stopped = glt::copy_range(a, ids, begin, end, static_cast<char*>(out));
    int64_t seen = bad.load();
    while (stopped < end && stopped < seen && !bad.compare_exchange_weak(seen, stopped)) {
    }
  });
  if (bad < n) return glt::fail(detail, GLT_BAD_ID, bad, ids[bad]);
  return GLT_OK;
}
