// Prefix sums in one pass over items whose number the device alone knows: "decoupled look-back" (Merrill and Garland,
// "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016). A body is a struct of plain values with
//   size()                   how many items there are, at most the bound of the launch
//   value(i)                 called once for each item, in any order
//   place(i, before, value)  once, when value() of all items up to i is done; before: the sum of the values before i
//   finish(total)            once, when value() of all items is done; also where there are none
// place() may run before value() of later items, and finish() before place() of any. What place() needs of memory that
// finish() writes it has to take from elsewhere.
//
// `state`: scan_words(bound) words, zero at first, of one scan alone.
#pragma once
#include "device.cuh"
#include "hd.h"

namespace glt {

constexpr int kScanItems = 4;                // of a thread
constexpr int kScanTile = kScanItems * 256;  // of a block

GLT_HD int64_t scan_tiles(int64_t bound) { return bound <= 0 ? 1 : (bound - 1) / kScanTile + 1; }
inline int64_t scan_words(int64_t bound) { return 1 + scan_tiles(bound); }

#ifdef __CUDACC__
#define GLT_SHARED(type, name) __shared__ type name
#endif

#ifdef GLT_SHARED  // tests bring their own, with all else that the kernel asks of CUDA

static_assert(kScanTile == kScanItems * kThreads, "a tile is what a block takes");

// A tile's word: nothing yet (0), the sum of its own values, or the sum of all up to its end.
constexpr uint64_t kOwnSum = uint64_t(1) << 62, kFullSum = uint64_t(1) << 63, kSum = kOwnSum - 1;
constexpr unsigned kWarp = 0xffffffffu;

// Computes the sum of all tiles before this one, by one warp, and publishes this one's own. Tiles are numbered in the order in
// which blocks start, so a block only waits for blocks that run already.
__device__ __forceinline__ uint64_t look_back(uint64_t* tiles, int64_t tile, uint64_t own, int lane) {
  if (lane == 0) Atomic::write(tiles + tile, (tile ? kOwnSum : kFullSum) | own);
  uint64_t before = 0;
  for (int64_t last = tile - 1; last >= 0; last -= 32) {
    const int64_t at = last - lane;
    uint64_t seen;
    do seen = at >= 0 ? Atomic::read(tiles + at) : kFullSum;
    while (__any_sync(kWarp, !seen));
    const unsigned full = __ballot_sync(kWarp, (seen & kFullSum) != 0);
    uint64_t sum = !full || lane < __ffs(full) ? seen & kSum : 0;  // up to the nearest full sum
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(kWarp, sum, step);
    before += sum;
    if (full) break;
  }
  if (lane == 0 && tile) Atomic::write(tiles + tile, kFullSum | (before + own));
  return before;
}

// What the threads of a block share.
struct ScanBlock {
  uint64_t tile, before;  // before: the sum of the tiles before this one
  uint32_t sums[kThreads / 32];
};

// A warp has 32 * kScanItems items in a row; each access of its lanes is to neighbours. The bound of 4 blocks: without one the
// compiler uses too few registers, and spills.
template <class Body>
__global__ void __launch_bounds__(kThreads, 4) run_scan(Body body, uint64_t* state) {
  GLT_SHARED(ScanBlock, block);
  if (threadIdx.x == 0) block.tile = atomicAdd(reinterpret_cast<unsigned long long*>(state), 1ull);
  __syncthreads();
  const int64_t n = body.size(), tile = int64_t(block.tile);
  if (tile >= scan_tiles(n)) return;  // the whole block
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = tile * kScanTile + warp * (32 * kScanItems) + lane;
  uint32_t values[kScanItems], before[kScanItems], own = 0;
#pragma unroll
  for (int k = 0; k < kScanItems; ++k) values[k] = first + 32 * k < n ? body.value(first + 32 * k) : 0;
#pragma unroll
  for (int k = 0; k < kScanItems; ++k) {
    uint32_t sum = values[k];
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kWarp, sum, step);
      if (lane >= step) sum += other;
    }
    before[k] = own + sum - values[k];
    own += __shfl_sync(kWarp, sum, 31);
  }
  if (lane == 0) block.sums[warp] = own;
  __syncthreads();
  uint32_t warps_before = 0, total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) warps_before += block.sums[w];
    total += block.sums[w];
  }
  if (warp == 0) {
    const uint64_t found = look_back(state + 1, tile, total, lane);
    if (lane == 0) block.before = found;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kScanItems; ++k)
    if (first + 32 * k < n) body.place(first + 32 * k, int64_t(block.before) + warps_before + before[k], values[k]);
  if (tile == scan_tiles(n) - 1 && threadIdx.x == 0) body.finish(int64_t(block.before) + total);
}

#endif

#ifdef __CUDACC__
template <class Body>
int32_t scan_each(int64_t bound, const Body& body, uint64_t* state, void* stream, int64_t* detail) {
  const int64_t tiles = scan_tiles(bound);
  if (tiles > INT32_MAX) return fail(detail, GLT_BAD_ARG, bound);
  run_scan<<<unsigned(tiles), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(body, state);
  return launched(detail);
}
#endif

}  // namespace glt
