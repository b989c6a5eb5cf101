// Building and reading sets of ids with the rank of each member.
#include <glt/api.h>

#include <algorithm>

#include "graph.h"
#include "guard.h"
#include "rank.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define GLT_POPCNT __attribute__((target("popcnt")))
#endif

namespace glt {
namespace {

template <class Count>
GLT_HD_INLINE int32_t find(const uint64_t* blocks, int64_t first, int64_t num_ids, const int64_t* ids, int64_t n,
                           int32_t* rank, const Count& count) {
  constexpr int64_t kAhead = 16;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const uint64_t later = uint64_t(ids[i + kAhead] - first);
      prefetch(blocks + (later < uint64_t(num_ids) ? later / kRankBits * kRankWords : 0));
    }
    const uint64_t at = uint64_t(ids[i] - first);
    rank[i] = at < uint64_t(num_ids) ? find_rank(blocks, at, count) : -1;
  }
  return GLT_OK;
}

#ifdef GLT_POPCNT
GLT_POPCNT int32_t find_counting(const uint64_t* blocks, int64_t first, int64_t num_ids, const int64_t* ids, int64_t n,
                                 int32_t* rank) {
  return find(blocks, first, num_ids, ids, n, rank, [](uint64_t x) GLT_POPCNT { return uint64_t(__builtin_popcountll(x)); });
}
#endif

}  // namespace
}  // namespace glt

int64_t glt_rank_words(int64_t num_ids) { return (num_ids + glt::kRankBits - 1) / glt::kRankBits * glt::kRankWords; }

int32_t glt_rank_build(const int64_t* members, int64_t n, int64_t first, int64_t num_ids, uint64_t* blocks, int64_t* detail) try {
  using namespace glt;
  const int64_t words = glt_rank_words(num_ids);
  std::fill(blocks, blocks + words, 0);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = members[i] - first;
    if (at < 0 || at >= num_ids || (i && members[i] <= members[i - 1])) return fail(detail, GLT_BAD_ID, i, members[i]);
    blocks[at / kRankBits * kRankWords + 1 + at % kRankBits / 64] |= uint64_t(1) << (at % kRankBits % 64);
  }
  uint64_t before = 0;
  for (uint64_t* block = blocks; block < blocks + words; block += kRankWords) {
    const uint64_t one = CountBits()(block[1]), two = one + CountBits()(block[2]);
    block[0] = before << kRankBase | two << 16 | one << 8;
    before += two + CountBits()(block[3]);
  }
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_rank_find(const uint64_t* blocks, int64_t first, int64_t num_ids, const int64_t* ids, int64_t n, int32_t* rank) try {
#ifdef GLT_POPCNT
  static const bool counts = (__builtin_cpu_init(), __builtin_cpu_supports("popcnt"));
  if (counts) return glt::find_counting(blocks, first, num_ids, ids, n, rank);
#endif
  return glt::find(blocks, first, num_ids, ids, n, rank, glt::CountBits());
}
GLT_CATCH(nullptr)
