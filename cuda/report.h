// Errors of a thread of a kernel: `error` is int64 [5] in device memory, a status and its detail, zero at first. The first
// thread to fail claims it; the kernel goes on without the bad item.
#pragma once
#include "device.cuh"

namespace glt {

GLT_DEVICE void report(int64_t* error, int32_t status, int64_t a, int64_t b, int64_t c = 0, int64_t d = 0) {
  if (Atomic::swap_if(reinterpret_cast<uint64_t*>(error), 0, uint64_t(status)) != 0) return;
  error[1] = a, error[2] = b, error[3] = c, error[4] = d;
}

}  // namespace glt
