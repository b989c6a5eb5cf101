// Gathering rows of a sharded array.
#include <glt/cuda.h>

#include "copy.h"
#include "each_row.cuh"
#include "guard.h"

namespace glt {
namespace {

// Row bytes from which on a lane copies more than one word.
constexpr int64_t kWideRow = 2 * 32 * sizeof(Bytes16);

template <int kAhead>
struct CopyRow {
  char* out;
  int64_t row_bytes;

  GLT_DEVICE void operator()(const char* row, int64_t i, uint32_t lane, uint32_t lanes) const {
    copy_row<kAhead>(row, out + i * row_bytes, row_bytes, lane, lanes);
  }
};

}  // namespace
}  // namespace glt

int32_t glt_cuda_gather(const void* const* shards, const int64_t* strides, const int64_t* bounds, int32_t num_shards,
                        int64_t row_bytes, const int64_t* ids, int64_t n, void* out, int64_t* error, int64_t* detail,
                        void* stream) try {
  if (num_shards < 1 || row_bytes < 0) return glt::fail(detail, GLT_BAD_ARG, num_shards, row_bytes);
  const glt::Shards a{shards, bounds, num_shards, row_bytes, strides};
  char* const to = static_cast<char*>(out);
  if (row_bytes < glt::kWideRow)
    return glt::each_row(a, ids, n, row_bytes, glt::CopyRow<1>{to, row_bytes}, error, detail, stream);
  const glt::CopyRow<2> copy{to, row_bytes};
  return glt::for_each(n * 32, glt::EachRow<32, glt::CopyRow<2>>{a, ids, error, copy}, stream, detail);
}
GLT_CATCH(detail)
