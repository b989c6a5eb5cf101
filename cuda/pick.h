// Which positions of a row are picked, in ascending order.
// Without replacement: Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987). Draw i takes a position in [0, j],
// j = degree - fanout + i; a position taken before is replaced by j itself.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "random.h"

namespace glt {

constexpr int kMaxBitWords = 512;  // 4 KiB of stack: rows up to 32768 neighbours by bit set, see pick_distinct

// seen: words of zeros
inline void pick_by_bits(uint64_t stream, uint32_t degree, uint32_t fanout, uint64_t* seen, uint32_t words, uint32_t* out) {
  for (uint32_t i = 0, j = degree - fanout; i < fanout; ++i, ++j) {
    uint32_t q = draw(stream, i, j + 1);
    if (seen[q >> 6] >> (q & 63) & 1) q = j;
    seen[q >> 6] |= uint64_t(1) << (q & 63);
  }
  for (uint32_t w = 0; w < words; ++w)
    for (uint64_t bits = seen[w]; bits; bits &= bits - 1) *out++ = w * 64 + __builtin_ctzll(bits);
}

inline void pick_by_word(uint64_t stream, uint32_t degree, uint32_t fanout, uint32_t* out) {
  uint64_t seen = 0;
  for (uint32_t i = 0, j = degree - fanout; i < fanout; ++i, ++j) {
    const uint32_t q = draw(stream, i, j + 1);
    const uint64_t bit = uint64_t(1) << q;
    seen |= seen & bit ? uint64_t(1) << j : bit;
  }
  for (; seen; seen &= seen - 1) *out++ = __builtin_ctzll(seen);
}

inline void pick_by_insertion(uint64_t stream, uint32_t degree, uint32_t fanout, uint32_t* out) {
  for (uint32_t i = 0, j = degree - fanout; i < fanout; ++i, ++j) {
    const uint32_t q = draw(stream, i, j + 1);
    uint32_t* at = std::lower_bound(out, out + i, q);
    if (at < out + i && *at == q) {
      out[i] = j;  // larger than all before it
    } else {
      std::memmove(at + 1, at, (out + i - at) * sizeof(uint32_t));
      *at = q;
    }
  }
}

// fanout distinct positions out of degree > fanout. The bit set costs a pass over degree / 64 words, the insertion
// fanout^2 / 4 moves, some 8 at a time: for fan-outs of thousands it would take seconds a row.
inline void pick_distinct(uint64_t stream, uint32_t degree, uint32_t fanout, uint32_t* out) {
  if (degree <= 64) return pick_by_word(stream, degree, fanout, out);
  const uint32_t words = (degree - 1) / 64 + 1;
  if (words <= kMaxBitWords && words <= 4 * fanout) {
    uint64_t seen[kMaxBitWords];
    std::memset(seen, 0, words * sizeof(uint64_t));
    return pick_by_bits(stream, degree, fanout, seen, words, out);
  }
  if (words <= uint64_t(fanout) * fanout / 32) {
    std::vector<uint64_t> seen(words, 0);
    return pick_by_bits(stream, degree, fanout, seen.data(), words, out);
  }
  pick_by_insertion(stream, degree, fanout, out);
}

inline void pick_repeated(uint64_t stream, uint32_t degree, uint32_t fanout, uint32_t* out) {
  for (uint32_t i = 0; i < fanout; ++i) out[i] = draw(stream, i, degree);
  std::sort(out, out + fanout);
}

// The number of neighbours that a row of this degree yields.
GLT_HD int64_t pick_count(int64_t degree, int32_t fanout, bool replace) {
  if (fanout < 0) return degree;
  if (replace) return degree ? fanout : 0;
  return degree < fanout ? degree : fanout;
}

}  // namespace glt
