// Gathering rows of a sharded array.
#include <glt/cuda.h>

#include "copy.h"
#include "report.h"
#include "shards.h"

namespace glt {
namespace {

// Thread k copies part k % kLanes of row k / kLanes.
template <int kLanes>
struct CopyRow {
  Shards shards;
  const int64_t* ids;
  char* out;
  int64_t* error;

  GLT_DEVICE void operator()(int64_t k) const {
    const int64_t i = k / kLanes, id = ids[i];
    const char* from = shards.has(id) ? shards.row(id) : nullptr;
    if (from) copy_row(from, out + i * shards.row_bytes, shards.row_bytes, uint32_t(k % kLanes), kLanes);
    else if (k % kLanes == 0) report(error, GLT_BAD_ID, i, id);
  }
};

template <int kLanes>
int32_t copy_rows(int64_t n, const Shards& shards, const int64_t* ids, void* out, int64_t* error, int64_t* detail,
                  void* stream) {
  return for_each(n * kLanes, CopyRow<kLanes>{shards, ids, static_cast<char*>(out), error}, stream, detail);
}

}  // namespace
}  // namespace glt

int32_t glt_cuda_gather(const void* const* shards, const int64_t* bounds, int32_t num_shards, int64_t row_bytes,
                        const int64_t* ids, int64_t n, void* out, int64_t* error, int64_t* detail, void* stream) {
  if (num_shards < 1 || row_bytes < 0) return glt::fail(detail, GLT_BAD_ARG, num_shards, row_bytes);
  const glt::Shards all{shards, bounds, num_shards, row_bytes};
  // one access of 16 bytes a lane, up to a warp
  auto run = row_bytes <= 16 ? glt::copy_rows<1> : (row_bytes <= 128 ? glt::copy_rows<8> : glt::copy_rows<32>);
  return run(n, all, ids, out, error, detail, stream);
}
