// A set of ids with the rank of each: a bitmap in blocks of half a cache line, 1.34 bits per id of the range.
//
// A block is four words: three hold the bits of 192 ids; the first holds how many members are before the block (from bit
// 24 on), and in its bytes 0 to 2 how many of the block are before each of the three. A lookup reads one line and counts
// the bits of one word. (As rank9 of Vigna, "Broadword implementation of rank/select queries", 2008.)
#pragma once
#include <stdint.h>

#include "hd.h"

namespace glt {

constexpr int64_t kRankWords = 4, kRankBits = 64 * (kRankWords - 1), kRankBase = 24;

// For processors without an instruction that counts bits; the compiler's library call is slower than this. A device has one.
struct CountBits {
  GLT_HD_INLINE uint64_t operator()(uint64_t x) const {
#ifdef __CUDA_ARCH__
    return uint64_t(__popcll(x));
#else
    x -= x >> 1 & 0x5555555555555555;
    x = (x & 0x3333333333333333) + (x >> 2 & 0x3333333333333333);
    return ((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56;
#endif
  }
};

// The rank of the id at this place of the range, -1 for none. One division for the block and the word in it, and no branch
// on whether an id is a member, which a processor cannot predict.
template <class Count>
GLT_HD_INLINE int32_t find_rank(const uint64_t* blocks, uint64_t at, const Count& count) {
  constexpr uint64_t kGroup = kRankWords - 1;
  const uint64_t place = at / 64, block = place / kGroup, word = place - block * kGroup;
  const uint64_t* line = blocks + block * kRankWords;
  const uint64_t bits = line[1 + word], here = bits >> (at % 64) << (at % 64);  // from this bit on
  const uint64_t before = (line[0] >> kRankBase) + (line[0] >> (8 * word) & 0xff) + count(bits ^ here);
  const int32_t member = int32_t(bits >> (at % 64) & 1);
  return (int32_t(before) + 1) * member - 1;
}

}  // namespace glt
