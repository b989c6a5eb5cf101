// An array whose rows lie in P shards, stacked in order.
#pragma once
#include <stdint.h>

#include "hd.h"

namespace glt {

// The shard of an id; bounds [count + 1]. For few shards counting bounds is faster than a search.
GLT_HD int32_t shard_of(const int64_t* bounds, int32_t count, int64_t id) {
  int32_t s = 0;
  if (count <= 8) {
    for (int32_t k = 1; k < count; ++k) s += id >= bounds[k];
    return s;
  }
  for (int32_t end = count; end - s > 1;) {
    const int32_t middle = s + (end - s) / 2;
    (id >= bounds[middle] ? s : end) = middle;
  }
  return s;
}

struct Shards {
  const void* const* data;  // [count], null where a shard is not here
  const int64_t* bounds;    // [count + 1] id of each shard's first row
  int32_t count;
  int64_t row_bytes;
  const int64_t* strides = nullptr;  // [count] bytes from row to row of each shard; null: row_bytes

  GLT_HD bool has(int64_t id) const { return uint64_t(id - bounds[0]) < uint64_t(bounds[count] - bounds[0]); }

  // The row of an id that `has`; null if its shard is not here.
  GLT_HD const char* row(int64_t id) const {
    const int32_t s = shard_of(bounds, count, id);
    const int64_t stride = strides ? strides[s] : row_bytes;
    return data[s] ? static_cast<const char*>(data[s]) + (id - bounds[s]) * stride : nullptr;
  }
};

}  // namespace glt
