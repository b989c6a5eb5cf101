// A set of ids with the rank of each: a bitmap in blocks of half a cache line, 1.34 bits per id of the range.
//
// A block is four words: three hold the bits of 192 ids; the first holds how many members are before the block (from bit
// 24 on), and in its bytes 0 to 2 how many of the block are before each of the three. A lookup reads one line and counts
// the bits of one word. (As rank9 of Vigna, "Broadword implementation of rank/select queries", 2008.)
#include <glt/api.h>

#include <algorithm>

#include "graph.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define GLT_POPCNT __attribute__((target("popcnt")))
#endif

namespace glt {
namespace {

constexpr int64_t kWords = 4, kBits = 64 * (kWords - 1), kBase = 24;

// For processors without an instruction for it; the compiler's call to its own is slower than these.
inline uint64_t count_bits(uint64_t x) {
  x -= x >> 1 & 0x5555555555555555;
  x = (x & 0x3333333333333333) + (x >> 2 & 0x3333333333333333);
  return ((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56;
}

// One division for the block and the word in it, and no branch on whether an id is a member: nobody can guess that.
template <class Count>
__attribute__((always_inline)) inline int32_t find(const uint64_t* blocks, int64_t first, int64_t num_ids, const int64_t* ids,
                                                   int64_t n, int32_t* rank, Count count) {
  constexpr int64_t kAhead = 16;
  constexpr uint64_t kGroup = kWords - 1;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const uint64_t later = uint64_t(ids[i + kAhead] - first);
      prefetch(blocks + (later < uint64_t(num_ids) ? later / kBits * kWords : 0));
    }
    const uint64_t at = uint64_t(ids[i] - first);
    if (at >= uint64_t(num_ids)) {
      rank[i] = -1;
      continue;
    }
    const uint64_t place = at / 64, block = place / kGroup, word = place - block * kGroup;
    const uint64_t* line = blocks + block * kWords;
    const uint64_t here = line[1 + word] >> (at % 64) << (at % 64);  // from this bit on
    const uint64_t before = (line[0] >> kBase) + (line[0] >> (8 * word) & 0xff) + count(line[1 + word] ^ here);
    const int32_t member = int32_t(line[1 + word] >> (at % 64) & 1);
    rank[i] = (int32_t(before) + 1) * member - 1;
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

int64_t glt_rank_words(int64_t num_ids) { return (num_ids + glt::kBits - 1) / glt::kBits * glt::kWords; }

int32_t glt_rank_build(const int64_t* members, int64_t n, int64_t first, int64_t num_ids, uint64_t* blocks, int64_t* detail) {
  using glt::kBits, glt::kWords;
  const int64_t words = glt_rank_words(num_ids);
  std::fill(blocks, blocks + words, 0);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = members[i] - first;
    if (at < 0 || at >= num_ids || (i && members[i] <= members[i - 1])) return glt::fail(detail, GLT_BAD_ID, i, members[i]);
    blocks[at / kBits * kWords + 1 + at % kBits / 64] |= uint64_t(1) << (at % kBits % 64);
  }
  uint64_t before = 0;
  for (uint64_t* block = blocks; block < blocks + words; block += kWords) {
    const uint64_t one = glt::count_bits(block[1]), two = one + glt::count_bits(block[2]);
    block[0] = before << glt::kBase | two << 16 | one << 8;
    before += two + glt::count_bits(block[3]);
  }
  return GLT_OK;
}

int32_t glt_rank_find(const uint64_t* blocks, int64_t first, int64_t num_ids, const int64_t* ids, int64_t n, int32_t* rank) {
#ifdef GLT_POPCNT
  static const bool counts = (__builtin_cpu_init(), __builtin_cpu_supports("popcnt"));
  if (counts) return glt::find_counting(blocks, first, num_ids, ids, n, rank);
#endif
  return glt::find(blocks, first, num_ids, ids, n, rank, [](uint64_t x) { return glt::count_bits(x); });
}
