// Counter-based random numbers: what a node draws is a function of (batch key, hop, edge type, user id, draw) alone, so
// the CPU, the GPU and the reference agree on any number of threads and parts.
// Mixer: the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
#pragma once
#include <stdint.h>

#include "hd.h"

namespace glt {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

GLT_HD_INLINE uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

GLT_HD uint64_t hop_key(uint64_t batch_key, int hop, uint64_t edge_type_key) {
  return mix(mix(batch_key ^ mix(uint64_t(hop) + 1)) ^ edge_type_key);
}

// The key of a hop in one tree of a disjoint batch: a node in two trees draws independently in each.
GLT_HD uint64_t tree_key(uint64_t hop_key, int32_t tree) { return mix(hop_key ^ mix(uint64_t(uint32_t(tree)) + 1)); }

GLT_HD_INLINE uint64_t row_stream(uint64_t hop_key, int64_t user_id) { return mix(hop_key + uint64_t(user_id) * kGolden); }

// The i-th draw of a row, uniform in [0, n): the high half of a 64 x 64 bit product (Lemire, 2019, without rejection;
// the bias is below n / 2^64).
GLT_HD uint32_t draw(uint64_t stream, uint32_t i, uint32_t n) {
  const uint64_t bits = mix(stream + (uint64_t(i) + 1) * kGolden);
#ifdef __CUDA_ARCH__
  return uint32_t(__umul64hi(bits, n));
#else
  return uint32_t((unsigned __int128)(bits) * n >> 64);
#endif
}

}  // namespace glt
