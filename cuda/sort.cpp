// Sorts keys by their digits, the lowest first: a stable sort in as many rounds over the keys as they have digits.
#include <glt/order.h>

#include <utility>
#include <vector>

#include "guard.h"

namespace glt {
namespace {

constexpr int32_t kMostBits = 11;  // of a digit: the ends of 2048 runs that are written at a time stay in the caches

struct Keys {
  uint64_t* key;
  int64_t* position;  // or null
};

template <bool kPositions>
void sort_digit(const Keys& from, const Keys& to, int64_t n, int32_t shift, uint64_t mask, int64_t* at) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = at[from.key[i] >> shift & mask]++;
    to.key[place] = from.key[i];
    if (kPositions) to.position[place] = from.position[i];
  }
}

void sort(Keys keys, Keys spare, int64_t n) {
  uint64_t used = 0;
  for (int64_t i = 0; i < n; ++i) used |= keys.key[i];
  int32_t bits = 1;
  while (bits < 64 && used >> bits) ++bits;
  const int32_t rounds = 2 * ((bits + 2 * kMostBits - 1) / (2 * kMostBits));  // even: the last one ends where the first began
  const int32_t width = (bits + rounds - 1) / rounds;
  const uint64_t mask = (uint64_t(1) << width) - 1;
  std::vector<int64_t> at(rounds << width, 0);
  for (int64_t i = 0; i < n; ++i)
    for (int32_t r = 0; r < rounds; ++r) ++at[(int64_t(r) << width) + int64_t(keys.key[i] >> r * width & mask)];
  for (int32_t r = 0; r < rounds; ++r) {
    int64_t total = 0, *counts = at.data() + (int64_t(r) << width);
    for (uint64_t digit = 0; digit <= mask; ++digit) total += std::exchange(counts[digit], total);
    (keys.position ? sort_digit<true> : sort_digit<false>)(keys, spare, n, r * width, mask, counts);
    std::swap(keys, spare);
  }
}

}  // namespace
}  // namespace glt

int32_t glt_sort(uint64_t* keys, int64_t* positions, int64_t n, uint64_t* spare_keys, int64_t* spare_positions,
                 int64_t* detail) try {
  glt::sort({keys, positions}, {spare_keys, spare_positions}, n);
  return GLT_OK;
}
GLT_CATCH(detail)
