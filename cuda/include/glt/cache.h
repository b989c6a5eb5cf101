// A cache of rows that learns what is hot: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
// 2023) in shards, for many threads of one process. Conventions as in api.h; ids are >= 0 and may repeat within a call.
//
// An entry is an id and one row of each of A attributes. Each shard has room for some entries in two queues, the small
// one (a tenth) and the main one, and remembers in a third, the ghosts, which ids it lately dropped from the small one:
//   found        its counter goes up by 1, to at most 3
//   insert       at the end of the main queue if its ghost is there (which goes), else of the small one; counter 0.
//                A full shard first drops an entry: of the small queue if that holds its tenth, else of the main one.
//   drop, small  from the front on: counter > 1: to the end of the main queue with counter 0 (and if that now holds more
//                than the rest of the capacity, that one drops instead); else the entry goes and becomes a ghost
//   drop, main   from the front on: counter > 0: back to the end, counter - 1; else the entry goes
// A ghost is forgotten when as many others as the main queue's share (at least 1) came after it.
// Shard of an id: ((h >> 48) * num_shards) >> 16, h = SplitMix64's finaliser of the id.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLT_CACHE_MAX_SHARDS 65536
#define GLT_CACHE_MAX_ENTRIES 500000000  // of a shard

typedef struct {
  int64_t capacity;            // entries; capacity / num_shards each, the first capacity % num_shards shards one more
  int32_t num_shards;          // 1 to min(capacity, GLT_CACHE_MAX_SHARDS)
  int32_t num_attrs;           // A
  const int64_t* row_bytes;    // [A]
} glt_cache_spec;

// Bytes of a cache: rows, ids, index, ghosts, locks. -1 if the spec breaks a limit.
GLT_API int64_t glt_cache_bytes(const glt_cache_spec* spec);

// Makes an empty cache of glt_cache_bytes bytes of memory, aligned to 64, which then must not move.
GLT_API int32_t glt_cache_init(void* cache, const glt_cache_spec* spec);

// place [n]: 0, 1, 2 ... for the ids that were found, -1 for the others; *num_found; out [A] -> row_bytes each, room for
// n: the rows found, by place. GLT_BAD_ID: an id is negative, nothing is done.
GLT_API int32_t glt_cache_find(void* cache, const int64_t* ids, int64_t n, void* const* out, int32_t* place,
                               int64_t* num_found, int64_t* detail);

// Offers n entries; rows [A] -> [n] rows. An id that is there is left as it is. GLT_BAD_ID as above.
GLT_API int32_t glt_cache_insert(void* cache, const int64_t* ids, int64_t n, const void* const* rows, int64_t* detail);

// counters [4]: ids that were found, that were not, entries dropped, entries now.
GLT_API int32_t glt_cache_counters(void* cache, int64_t* counters);

#ifdef __cplusplus
}
#endif
