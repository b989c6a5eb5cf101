// Sums of gathered rows. Conventions as in api.h.
#pragma once
#include <glt/decode.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GLT_FLOAT32 = 0 };  // beside the encodings of decode.h

// out[d] = the sum, or with `mean` the mean, of the rows ids[src[e]] of all edges e with dst[e] == d, for d in [0, num_out); 0
// where there are none. Added in float32 in the order of the edges, so that the result depends on neither shards nor threads.
// src [num_edges]: positions in ids [num_ids].  dst [num_edges]: ascending.  Rows: `values` numbers that are stored as `encoding`
// says; shards and bounds as for glt_gather.  out [num_out * values].  GLT_BAD_ARG: dst does not ascend, or is not below num_out.
GLT_API int32_t glt_gather_sum(const void* const* shards, const int64_t* bounds, int32_t num_shards, int32_t encoding,
                               int64_t values, const int64_t* ids, int64_t num_ids, const int32_t* src, const int32_t* dst,
                               int64_t num_edges, int64_t num_out, int32_t mean, float* out, int32_t threads, int64_t* detail);

#ifdef __cplusplus
}
#endif
