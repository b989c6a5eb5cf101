// A cache of rows in shards: how it lies in memory, and the loops over many ids. One pass in the order of the ids with
// one short lock each: what an id needs is prefetched before, the word of its lock included. With that the locks cost too
// little to be measured on one thread, so ids are not grouped by shard.
#include <glt/cache.h>

#include <algorithm>
#include <cstring>

#include "graph.h"
#include "guard.h"
#include "s3fifo.h"
#include "spin.h"

namespace glt {
namespace {

struct Attr {
  int64_t bytes, offset;  // in the block of an entry
};

struct alignas(64) Cache {
  int64_t num_shards, num_attrs;
  Attr* attrs;
  Shard* shards;
  int64_t hits, misses;

  Shard& shard(uint64_t hash) const { return shards[(hash >> 48) * uint64_t(num_shards) >> 16]; }
};

// Deals out memory from `base` on; with a null base it only counts.
struct Plan {
  char* base;
  int64_t used = 0;

  template <class T>
  T* take(int64_t count, int64_t bytes_each = sizeof(T)) {
    T* here = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (count * bytes_each + 63) / 64 * 64;
    return here;
  }
};

bool is_sound(const glt_cache_spec& s) {
  if (s.num_attrs < 1 || s.num_shards < 1 || s.num_shards > GLT_CACHE_MAX_SHARDS || s.capacity < s.num_shards) return false;
  for (int32_t a = 0; a < s.num_attrs; ++a)
    if (s.row_bytes[a] < 0) return false;
  return (s.capacity - 1) / s.num_shards < GLT_CACHE_MAX_ENTRIES;
}

int64_t block_bytes(const glt_cache_spec& s) {
  int64_t bytes = sizeof(int64_t);
  for (int32_t a = 0; a < s.num_attrs; ++a) bytes += s.row_bytes[a];
  return (bytes + 7) / 8 * 8;
}

void start(Shard& shard, uint32_t capacity) {
  shard.capacity = capacity;
  shard.small_share = Shard::small_share_of(capacity);
  shard.num_ghosts = Shard::num_ghosts_of(capacity);
  std::memset(shard.index.words, 0, shard.index.size * sizeof(uint64_t));
  std::fill(shard.ghosts, shard.ghosts + shard.num_ghosts, kNoId);
}

int64_t lay_out(const glt_cache_spec& s, char* base) {
  Plan plan{base};
  Cache* cache = plan.take<Cache>(1);
  Attr* attrs = plan.take<Attr>(s.num_attrs);
  Shard* shards = plan.take<Shard>(s.num_shards);
  if (base) {
    *cache = Cache{s.num_shards, s.num_attrs, attrs, shards, 0, 0};
    int64_t offset = sizeof(int64_t);
    for (int32_t a = 0; a < s.num_attrs; offset += s.row_bytes[a++]) attrs[a] = Attr{s.row_bytes[a], offset};
  }
  for (int32_t i = 0; i < s.num_shards; ++i) {
    const int64_t capacity = s.capacity / s.num_shards + (i < s.capacity % s.num_shards);
    Shard shard{};
    shard.index.size = uint64_t(Shard::index_size_of(capacity));
    shard.index.words = plan.take<uint64_t>(int64_t(shard.index.size));
    shard.next = plan.take<uint32_t>(capacity);
    shard.ghosts = plan.take<int64_t>(Shard::num_ghosts_of(capacity));
    shard.block_bytes = block_bytes(s);
    shard.blocks = plan.take<char>(capacity, shard.block_bytes);
    if (!base) continue;
    start(shard, uint32_t(capacity));
    shards[i] = shard;
  }
  return plan.used;
}

inline void copy(char* to, const char* from, int64_t bytes) {
  if (bytes == 8) std::memcpy(to, from, 8);  // ids and labels
  else std::memcpy(to, from, bytes);
}

int64_t first_negative(const int64_t* ids, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (ids[i] < 0) return i;
  return n;
}

// Calls body(shard, tag, i) for all ids in order. Some iterations before, the id's part of the index is fetched, and a
// few before its block (all of a row of 400 bytes: a tenth faster than its beginning).
template <class Body>
void each_id(const Cache& cache, const int64_t* ids, int64_t n, const Body& body) {
  constexpr int64_t kFar = 24, kNear = 6, kRing = 32, kAtOnce = 512;
  uint64_t hashes[kRing];
  for (int64_t i = -kFar; i < n; ++i) {
    if (i + kFar < n) {
      const uint64_t hash = hashes[(i + kFar) % kRing] = mix(uint64_t(ids[i + kFar]));
      const Shard& shard = cache.shard(hash);
      __builtin_prefetch(&shard.lock, 1);
      shard.index.prefetch(uint32_t(hash));
    }
    if (i + kNear >= 0 && i + kNear < n) {
      const uint64_t hash = hashes[(i + kNear) % kRing];
      const Shard& shard = cache.shard(hash);
      if (const char* block = shard.guess(uint32_t(hash)))
        for (int64_t k = 0; k < std::min(shard.block_bytes, kAtOnce); k += 64) prefetch(block + k);
    }
    if (i >= 0) body(cache.shard(hashes[i % kRing]), uint32_t(hashes[i % kRing]), i);
  }
}

}  // namespace
}  // namespace glt

int64_t glt_cache_bytes(const glt_cache_spec* spec) { return glt::is_sound(*spec) ? glt::lay_out(*spec, nullptr) : -1; }

int32_t glt_cache_init(void* cache, const glt_cache_spec* spec) try {
  if (!glt::is_sound(*spec) || reinterpret_cast<uintptr_t>(cache) % 64) return GLT_BAD_ARG;
  glt::lay_out(*spec, static_cast<char*>(cache));
  return GLT_OK;
}
GLT_CATCH(nullptr)

int32_t glt_cache_find(void* memory, const int64_t* ids, int64_t n, void* const* out, int32_t* place, int64_t* num_found,
                       int64_t* detail) try {
  glt::Cache& cache = *static_cast<glt::Cache*>(memory);
  if (const int64_t bad = glt::first_negative(ids, n); bad < n) return glt::fail(detail, GLT_BAD_ID, bad, ids[bad]);
  int64_t found = 0;
  glt::each_id(cache, ids, n, [&](glt::Shard& shard, uint32_t tag, int64_t i) {
    const glt::Holding holding(shard.lock);
    const char* block = shard.find(tag, ids[i]);
    place[i] = block ? int32_t(found) : -1;
    if (!block) return;
    for (int64_t a = 0; a < cache.num_attrs; ++a) {
      const auto [bytes, offset] = cache.attrs[a];
      glt::copy(static_cast<char*>(out[a]) + found * bytes, block + offset, bytes);
    }
    ++found;
  });
  __atomic_fetch_add(&cache.hits, found, __ATOMIC_RELAXED);
  __atomic_fetch_add(&cache.misses, n - found, __ATOMIC_RELAXED);
  *num_found = found;
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_cache_insert(void* memory, const int64_t* ids, int64_t n, const void* const* rows, int64_t* detail) try {
  const glt::Cache& cache = *static_cast<glt::Cache*>(memory);
  if (const int64_t bad = glt::first_negative(ids, n); bad < n) return glt::fail(detail, GLT_BAD_ID, bad, ids[bad]);
  glt::each_id(cache, ids, n, [&](glt::Shard& shard, uint32_t tag, int64_t i) {
    const glt::Holding holding(shard.lock);
    char* block = shard.insert(tag, ids[i]);
    if (!block) return;
    for (int64_t a = 0; a < cache.num_attrs; ++a) {
      const auto [bytes, offset] = cache.attrs[a];
      glt::copy(block + offset, static_cast<const char*>(rows[a]) + i * bytes, bytes);
    }
  });
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_cache_counters(void* memory, int64_t* counters) try {
  glt::Cache& cache = *static_cast<glt::Cache*>(memory);
  counters[0] = __atomic_load_n(&cache.hits, __ATOMIC_RELAXED);
  counters[1] = __atomic_load_n(&cache.misses, __ATOMIC_RELAXED);
  counters[2] = counters[3] = 0;
  for (int64_t i = 0; i < cache.num_shards; ++i) {
    glt::Shard& shard = cache.shards[i];
    const glt::Holding holding(shard.lock);
    counters[2] += shard.evictions;
    counters[3] += shard.used;
  }
  return GLT_OK;
}
GLT_CATCH(nullptr)
