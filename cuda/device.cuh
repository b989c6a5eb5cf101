// Running a body on the device, and operations between its threads. A body is a struct of plain values with an operator for
// one thread, or with stages for a few lanes. It needs nothing else of CUDA, so tests run it on the host (there this
// file is empty and tests/native/emulate.cpp stands in for it).
#pragma once
#ifdef __CUDACC__
#include <cooperative_groups.h>

#include "graph.h"

namespace glt {

constexpr int kThreads = 256;

struct Atomic {
  template <class Word>
  static __device__ Word read(const Word* p) {
    return *static_cast<const volatile Word*>(p);
  }
  template <class Word>
  static __device__ void write(Word* p, Word value) {
    *static_cast<volatile Word*>(p) = value;
  }
  static __device__ uint64_t swap_if(uint64_t* p, uint64_t expected, uint64_t desired) {  // returns what was there
    return atomicCAS(reinterpret_cast<unsigned long long*>(p), expected, desired);
  }
  static __device__ void add(uint64_t* p, uint64_t value) { atomicAdd(reinterpret_cast<unsigned long long*>(p), value); }
  static __device__ void min(uint64_t* p, uint64_t value) { atomicMin(reinterpret_cast<unsigned long long*>(p), value); }
  static __device__ void min(uint32_t* p, uint32_t value) { atomicMin(p, value); }
};

template <class Body>
__global__ void __launch_bounds__(kThreads) run(Body body, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) body(i);
}

// kLanes lanes for each of n items, with Body::kWords words of shared memory an item. What a stage wrote, all lanes of the
// item see in the next one.
template <int kLanes, class Body>
__global__ void __launch_bounds__(kThreads) run_lanes(Body body, int64_t n) {
  alignas(8) __shared__ uint32_t memory[kThreads / kLanes][Body::kWords];
  const auto lanes = cooperative_groups::tiled_partition<kLanes>(cooperative_groups::this_thread_block());
  const int64_t i = int64_t(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  if (i >= n) return;  // all lanes of an item together
  const auto item = body.open(i, memory[threadIdx.x / kLanes]);
  const uint32_t lane = threadIdx.x % kLanes;
  body.first(item, lane, kLanes);
  lanes.sync();
  body.second(item, lane, kLanes);
  lanes.sync();
  body.third(item, lane, kLanes);
}

// Blocks of threads for n items; 0 where that is more than a grid has.
inline unsigned num_blocks(int64_t n, int64_t items_per_block) {
  const int64_t blocks = (n - 1) / items_per_block + 1;
  return blocks <= INT32_MAX ? unsigned(blocks) : 0;
}

// The status of a call of the CUDA runtime. The error is cleared, so that the next launch does not report it again.
inline int32_t status_of(cudaError_t error, int64_t* detail) {
  if (error == cudaSuccess) return GLT_OK;
  cudaGetLastError();
  return fail(detail, GLT_CUDA, error);
}

// The status of a launch, from this library's own copy of the CUDA runtime: torch's copy has a state of its own.
inline int32_t launched(int64_t* detail) { return status_of(cudaGetLastError(), detail); }

// body(i) for i in [0, n), in any order.
template <class Body>
int32_t for_each(int64_t n, const Body& body, void* stream, int64_t* detail) {
  if (n <= 0) return GLT_OK;
  const unsigned blocks = num_blocks(n, kThreads);
  if (!blocks) return fail(detail, GLT_BAD_ARG, n);
  run<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(body, n);
  return launched(detail);
}

// The three stages of items [0, n), items in any order.
template <int kLanes, class Body>
int32_t for_each_lanes(int64_t n, const Body& body, void* stream, int64_t* detail) {
  if (n <= 0) return GLT_OK;
  const unsigned blocks = num_blocks(n, kThreads / kLanes);
  if (!blocks) return fail(detail, GLT_BAD_ARG, n);
  run_lanes<kLanes><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(body, n);
  return launched(detail);
}

// All of `nbytes` bytes to one value.
inline int32_t fill_bytes(void* p, int value, int64_t nbytes, void* stream, int64_t* detail) {
  if (nbytes <= 0) return GLT_OK;
  return status_of(cudaMemsetAsync(p, value, size_t(nbytes), static_cast<cudaStream_t>(stream)), detail);
}

}  // namespace glt
#endif
