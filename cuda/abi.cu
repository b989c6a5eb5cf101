#include <glt/cuda.h>

#include "device.cuh"
#include "guard.h"

namespace glt {
namespace {

__global__ void probe() {}  // built for the same devices as all kernels

}  // namespace
}  // namespace glt

int32_t glt_abi_version(void) { return GLT_ABI_VERSION; }

int32_t glt_cuda_device_count(int32_t* count, int64_t* detail) try {
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  *count = found;
  return glt::status_of(error, detail);
}
GLT_CATCH(detail)

int32_t glt_cuda_versions(int32_t* built, int32_t* driver, int64_t* detail) try {
  const int32_t status = glt::status_of(cudaRuntimeGetVersion(built), detail);
  return status == GLT_OK ? glt::status_of(cudaDriverGetVersion(driver), detail) : status;
}
GLT_CATCH(detail)

int32_t glt_cuda_capability(int32_t* capability, int64_t* detail) try {
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  *capability = 10 * major + minor;
  cudaFuncAttributes found;
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&found, glt::probe);
  return glt::status_of(error, detail);
}
GLT_CATCH(detail)

const char* glt_cuda_error_text(int32_t error) { return cudaGetErrorString(cudaError_t(error)); }
