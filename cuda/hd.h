// Where a function runs. GLT_HD: on host and device. GLT_DEVICE: on the device, and on the host in tests that emulate it.
#pragma once

#ifdef __CUDACC__
#define GLT_HD __host__ __device__ __forceinline__
#define GLT_DEVICE __device__ __forceinline__
#else
#define GLT_HD inline
#define GLT_DEVICE inline
#endif
