// Gathering rows of a sharded array. Bound by memory.
#include <glt/api.h>

#include <cstring>

#include "each_row.h"
#include "guard.h"

namespace glt {
namespace {

// kBytes > 0: row size known at compile time
template <int64_t kBytes>
int64_t copy_rows(const Shards& a, const int64_t* ids, int64_t begin, int64_t end, char* out) {
  const int64_t bytes = kBytes ? kBytes : a.row_bytes;
  return each_row(a, ids, begin, end, [=](const char* row, int64_t i) { std::memcpy(out + i * bytes, row, bytes); });
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
                   const int64_t* ids, int64_t n, void* out, int32_t threads, int64_t* detail) try {
  const glt::Shards a{shards, bounds, num_shards, row_bytes};
  return glt::share_rows(ids, n, row_bytes, threads, detail, [&](int64_t begin, int64_t end) {
    return glt::copy_range(a, ids, begin, end, static_cast<char*>(out));
  });
}
GLT_CATCH(detail)

int32_t glt_copy_runs(const void* rows, int64_t num_rows, int64_t row_bytes, const int64_t* begin, const int64_t* count,
                      const int64_t* at, int64_t n, void* out, int64_t num_out, int64_t* detail) try {
  const char* const from = static_cast<const char*>(rows);
  char* const to = static_cast<char*>(out);
  for (int64_t i = 0; i < n; ++i) {
    if (count[i] < 0 || begin[i] < 0 || at[i] < 0 || begin[i] > num_rows - count[i] || at[i] > num_out - count[i])
      return glt::fail(detail, GLT_BAD_ARG, i);
    std::memcpy(to + at[i] * row_bytes, from + begin[i] * row_bytes, count[i] * row_bytes);
  }
  return GLT_OK;
}
GLT_CATCH(detail)
