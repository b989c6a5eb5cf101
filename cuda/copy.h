// Copying a row by lanes side by side, each access as wide as the addresses allow.
#pragma once
#include <stdint.h>

#include "hd.h"

namespace glt {

struct alignas(16) Bytes16 {
  uint64_t a, b;
};

template <class Word>
GLT_HD void copy_words(const char* from, char* to, int64_t bytes, uint32_t lane, uint32_t lanes) {
  for (int64_t i = lane; i < bytes / int64_t(sizeof(Word)); i += lanes)
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
}

// All lanes of a row take the same branch.
GLT_HD void copy_row(const char* from, char* to, int64_t bytes, uint32_t lane, uint32_t lanes) {
  const uint64_t low = reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to) | uint64_t(bytes);
  if (low % 16 == 0) copy_words<Bytes16>(from, to, bytes, lane, lanes);
  else if (low % 8 == 0) copy_words<uint64_t>(from, to, bytes, lane, lanes);
  else if (low % 4 == 0) copy_words<uint32_t>(from, to, bytes, lane, lanes);
  else if (low % 2 == 0) copy_words<uint16_t>(from, to, bytes, lane, lanes);
  else copy_words<uint8_t>(from, to, bytes, lane, lanes);
}

}  // namespace glt
