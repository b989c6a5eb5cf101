// A ReLU and dropout in one pass, which keeps no mask for the gradient.
#pragma once
#include <glt/aggregate.h>

#ifdef __cplusplus
extern "C" {
#endif

// out [rows, width] = relu(x) / (1 - p) for elements that are kept, else 0, with p = dropped / 2^32, 0 <= p < 1. The choice of
// kept elements depends only on seed, row and column. values: GLT_VALUES_*.
GLT_API int32_t glt_relu_dropout(int32_t values, const void* x, int64_t rows, int64_t width, int64_t dropped, int64_t seed,
                                 int32_t threads, void* out, int64_t* detail);

// grad_x [n] from grad [n] and the result out [n]: elements above 0 there were kept and passed the ReLU.
GLT_API int32_t glt_relu_dropout_grad(int32_t values, const void* grad, const void* out, int64_t n, int64_t dropped,
                                      int32_t threads, void* grad_x, int64_t* detail);

#ifdef __cplusplus
}
#endif
