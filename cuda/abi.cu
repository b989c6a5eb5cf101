#include <glt/cuda.h>

#include "device.cuh"

int32_t glt_abi_version(void) { return GLT_ABI_VERSION; }

int32_t glt_cuda_device_count(int32_t* count, int64_t* detail) {
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  *count = found;
  return glt::status_of(error, detail);
}

const char* glt_cuda_error_text(int32_t error) { return cudaGetErrorString(cudaError_t(error)); }
