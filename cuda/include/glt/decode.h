// Gathering rows of floats that are stored in fewer bytes. Conventions as in api.h.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

// Encodings of the values of a row, in native byte order.
enum {
  GLT_FLOAT16 = 1,   // 2 bytes each
  GLT_BFLOAT16 = 2,  // the upper 2 bytes of a float32 each
  GLT_INT8 = 3       // a float32, the scale, then 1 byte each; a value is scale * byte
};

// As glt_gather, for rows of `values` numbers that are stored as `encoding` says: out [n * values] float32, decoded.
GLT_API int32_t glt_gather_decode(const void* const* shards, const int64_t* bounds, int32_t num_shards, int32_t encoding,
                                  int64_t values, const int64_t* ids, int64_t n, float* out, int32_t threads,
                                  int64_t* detail);

#ifdef __cplusplus
}
#endif
