// Where a function runs. GLT_HD: on host and device. GLT_DEVICE: on the device, and on the host in tests that emulate it.
// GLT_HD_INLINE: as GLT_HD, and on the host inlined also into functions for a wider instruction set.
// GLT_RESTRICT: `restrict`, on the host only. A device would load through its read-only cache, which the tests' device lacks.
#pragma once

#ifdef __CUDACC__
#define GLT_HD __host__ __device__ __forceinline__
#define GLT_HD_INLINE GLT_HD
#define GLT_DEVICE __device__ __forceinline__
#else
#define GLT_HD inline
#define GLT_HD_INLINE __attribute__((always_inline)) inline
#define GLT_DEVICE inline
#endif

#ifdef __CUDA_ARCH__
#define GLT_RESTRICT
#else
#define GLT_RESTRICT __restrict
#endif
