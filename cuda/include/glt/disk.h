// Rows of an array that lie in files, read for one batch past the page cache. Conventions as in api.h.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLT_DISK_PAGE 4096
#define GLT_IO 16  // a file cannot be read; detail = {shard, errno, 0 for a file that ends too early, offset, bytes read}

// An array in shards, as for glt_gather, of which some lie in files.
typedef struct {
  int32_t num_shards;
  int32_t reserved;
  int64_t row_bytes;
  const int64_t* bounds;    // [num_shards + 1] id of each shard's first row
  const int32_t* fds;       // [num_shards] file descriptors; -1: rows in no file
  const int64_t* offsets;   // [num_shards] where the shard's first row begins in its file
  const int32_t* direct;    // [num_shards] 1: opened with O_DIRECT; 0: pages that were read are dropped from the page cache
  int64_t gap_bytes;        // pages that are no farther apart are read together
  int64_t most_bytes;       // of one read, unless a single row takes more
} glt_disk;

// Finds those of ids [n] that lie in files: wanted (of n entries) gets them ascending, each once.
// places [n]: end + the position in wanted, or the id itself if it lies in no file. counts [2]: the number of wanted ids, and
// the number of entries of `ids` that have one of these. GLT_BAD_ID: an id is not below end; detail = {position, id}.
GLT_API int32_t glt_disk_find(const glt_disk* disk, const int64_t* ids, int64_t n, int64_t end, int64_t* places,
                              int64_t* wanted, int64_t* counts, int64_t* detail);

// Reads the rows `wanted` [n], as glt_disk_find gives them, into out [n * row_bytes], by at most `threads` reads at a
// time. *bytes_read: bytes of all pages that were read.
GLT_API int32_t glt_disk_read(const glt_disk* disk, const int64_t* wanted, int64_t n, int32_t threads, void* out,
                              int64_t* bytes_read, int64_t* detail);

// Tries to read a file with O_DIRECT, that is with the alignment of pages. Returns 0, or the errno of the attempt.
GLT_API int32_t glt_disk_try(int32_t fd);

#ifdef __cplusplus
}
#endif
