// Looking up ids in a set with the rank of each member.
#include <glt/cuda.h>

#include "device.cuh"
#include "guard.h"
#include "rank.h"

namespace glt {
namespace {

struct FindRank {
  const uint64_t* blocks;
  int64_t first, num_ids;
  const int64_t* ids;
  int32_t* rank;

  GLT_DEVICE void operator()(int64_t i) const {
    const uint64_t at = uint64_t(ids[i] - first);
    rank[i] = at < uint64_t(num_ids) ? find_rank(blocks, at, CountBits()) : -1;
  }
};

}  // namespace
}  // namespace glt

int32_t glt_cuda_rank_find(const uint64_t* blocks, int64_t first, int64_t num_ids, const int64_t* ids, int64_t n,
                           int32_t* rank, int64_t* detail, void* stream) try {
  return glt::for_each(n, glt::FindRank{blocks, first, num_ids, ids, rank}, stream, detail);
}
GLT_CATCH(detail)
