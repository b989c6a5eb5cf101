// A set of ids with the rank of each: a bitmap in blocks of half a cache line, 1.34 bits per id of the range.
//
// A block is four words: three hold the bits of 192 ids; the first holds how many members are before the block (from bit
// 24 on), and in its bytes 0 to 2 how many of the block are before each of the three. A lookup reads one line and counts
// the bits of one word. (As rank9 of Vigna, "Broadword implementation of rank/select queries", 2008.)
#include <glt/api.h>

#include <algorithm>

#include "graph.h"

namespace glt {
namespace {

constexpr int64_t kWords = 4, kBits = 64 * (kWords - 1), kBase = 24;

// The portable build has no instruction for it, and the compiler's call to its own is slower than these.
inline uint64_t count_bits(uint64_t x) {
  x -= x >> 1 & 0x5555555555555555;
  x = (x & 0x3333333333333333) + (x >> 2 & 0x3333333333333333);
  return ((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56;
}

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
  using glt::kBits, glt::kWords;
  constexpr int64_t kAhead = 16;
  auto block = [&](int64_t i) { return blocks + uint64_t(ids[i] - first) / kBits * kWords; };
  auto known = [&](int64_t i) { return uint64_t(ids[i] - first) < uint64_t(num_ids); };
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n && known(i + kAhead)) glt::prefetch(block(i + kAhead));
    rank[i] = -1;
    if (!known(i)) continue;
    const uint64_t* line = block(i);
    const uint64_t bit = uint64_t(ids[i] - first) % kBits, word = bit / 64;
    const uint64_t below = line[1 + word] & ((uint64_t(1) << (bit % 64)) - 1);
    const uint64_t found = (line[0] >> glt::kBase) + (line[0] >> (8 * word) & 0xff) + glt::count_bits(below);
    rank[i] = line[1 + word] >> (bit % 64) & 1 ? int32_t(found) : -1;
  }
  return GLT_OK;
}
