// Host memory that the device reads in place.
#include <glt/cuda.h>

#include "device.cuh"
#include "guard.h"

int32_t glt_cuda_host_register(void* address, int64_t nbytes, void** device_address, int64_t* detail) try {
  if (nbytes < 1) return glt::fail(detail, GLT_BAD_ARG, nbytes);
  cudaError_t error = cudaHostRegister(address, size_t(nbytes), cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (error != cudaSuccess) return glt::status_of(error, detail);
  error = cudaHostGetDevicePointer(device_address, address, 0);
  if (error != cudaSuccess) cudaHostUnregister(address);
  return glt::status_of(error, detail);
}
GLT_CATCH(detail)

// Waits for the device first: kernels may still read the memory, and CUDA does not document that it waits.
int32_t glt_cuda_host_unregister(void* address, int64_t* detail) try {
  const cudaError_t waited = cudaDeviceSynchronize(), error = cudaHostUnregister(address);
  return glt::status_of(waited != cudaSuccess ? waited : error, detail);
}
GLT_CATCH(detail)
