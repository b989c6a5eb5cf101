// Copying a row by lanes side by side, each access as wide as the addresses allow.
#pragma once
#include <stdint.h>

#include "hd.h"

namespace glt {

struct alignas(16) Bytes16 {
  uint64_t a, b;
};

// The word of a row that a lane begins with; lanes is a power of two. A warp's words of 16 bytes may be read by quarters, of 8
// bytes by halves, each of every line of 128 bytes that it touches. So a quarter's lanes get words of one line: a row of 400
// bytes is then read in 4 pieces, and not in the 6.6 of a row whose lane 0 begins with word 0 wherever that lies (counted).
GLT_HD uint32_t first_word(const char* row, uint32_t word_bytes, uint32_t lane, uint32_t lanes) {
  return (lane - uint32_t(reinterpret_cast<uint64_t>(row) % 128) / word_bytes) & (lanes - 1);
}

// A lane reads kAhead words before it writes the first. The compiler alone would read each word after the write of the one
// before, as that might change it.
template <class Word, int kAhead>
GLT_HD void copy_words(const char* from, char* to, int64_t bytes, uint32_t lane, uint32_t lanes) {
  const int64_t n = bytes / int64_t(sizeof(Word)), step = int64_t(lanes);
  const Word* const in = reinterpret_cast<const Word*>(from);
  Word* const out = reinterpret_cast<Word*>(to);
  int64_t i = first_word(from, sizeof(Word), lane, lanes);
  if (kAhead > 1)
    for (; i + (kAhead - 1) * step < n; i += kAhead * step) {
      Word words[kAhead];
      for (int k = 0; k < kAhead; ++k) words[k] = in[i + k * step];
      for (int k = 0; k < kAhead; ++k) out[i + k * step] = words[k];
    }
  for (; i < n; i += step) out[i] = in[i];
}

// All lanes of a row take the same branch.
template <int kAhead>
GLT_HD void copy_row(const char* from, char* to, int64_t bytes, uint32_t lane, uint32_t lanes) {
  const uint64_t low = reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to) | uint64_t(bytes);
  if (low % 16 == 0) copy_words<Bytes16, kAhead>(from, to, bytes, lane, lanes);
  else if (low % 8 == 0) copy_words<uint64_t, kAhead>(from, to, bytes, lane, lanes);
  else if (low % 4 == 0) copy_words<uint32_t, kAhead>(from, to, bytes, lane, lanes);
  else if (low % 2 == 0) copy_words<uint16_t, kAhead>(from, to, bytes, lane, lanes);
  else copy_words<uint8_t, kAhead>(from, to, bytes, lane, lanes);
}

}  // namespace glt
