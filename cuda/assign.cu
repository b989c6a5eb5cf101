// Spreading values along rows, from which vertex inclusion probabilities are computed.
#include <glt/cuda.h>

#include "device.cuh"
#include "guard.h"
#include "report.h"

namespace glt {
namespace {

constexpr int64_t kSpreadLanes = 32;

// Thread k serves the neighbours k % kSpreadLanes, + kSpreadLanes, ... of row k / kSpreadLanes.
template <class Id>
struct SpreadRow {
  const int64_t* indptr;
  const Id* neighbors;
  int64_t num_nodes;
  const int64_t* values;
  int32_t width;
  int64_t* out;
  int64_t* error;

  GLT_DEVICE void operator()(int64_t k) const {
    const int64_t row = k / kSpreadLanes;
    for (int64_t e = indptr[row] + k % kSpreadLanes; e < indptr[row + 1]; e += kSpreadLanes) {
      const int64_t id = neighbors[e];
      if (uint64_t(id) >= uint64_t(num_nodes)) {
        report(error, GLT_BAD_ID, row, id);
        continue;
      }
      for (int32_t i = 0; i < width; ++i)
        if (const int64_t value = values[row * width + i])
          Atomic::add(reinterpret_cast<uint64_t*>(out + id * width + i), uint64_t(value));
    }
  }
};

}  // namespace
}  // namespace glt

int32_t glt_cuda_spread_rows(const int64_t* indptr, const void* neighbors, int32_t id_bytes, int64_t num_rows,
                             int64_t num_nodes, const int64_t* values, int32_t width, int64_t* out, int64_t* error,
                             int64_t* detail, void* stream) try {
  using namespace glt;
  if ((id_bytes != 4 && id_bytes != 8) || width < 1) return fail(detail, GLT_BAD_ARG, id_bytes, width);
  const int64_t n = num_rows * kSpreadLanes;
  const auto* narrow = static_cast<const int32_t*>(neighbors);
  const auto* wide = static_cast<const int64_t*>(neighbors);
  if (id_bytes == 4)
    return for_each(n, SpreadRow<int32_t>{indptr, narrow, num_nodes, values, width, out, error}, stream, detail);
  return for_each(n, SpreadRow<int64_t>{indptr, wide, num_nodes, values, width, out, error}, stream, detail);
}
GLT_CATCH(detail)
