// Gathering rows that are stored in fewer bytes than they are used in.
#include <glt/cuda.h>

#include "copy.h"
#include "each_row.cuh"
#include "guard.h"
#include "stored.h"

namespace glt {
namespace {

template <class T, int64_t count>
struct alignas(count * sizeof(T)) Pack {
  T at[count];
};

template <class Stored, int64_t kStep>
GLT_DEVICE bool is_for_steps(const char* row, const float* to, int64_t values) {
  constexpr uint64_t kIn = sizeof(typename Stored::Value) * kStep, kOut = sizeof(float) * kStep;
  const uint64_t from = reinterpret_cast<uint64_t>(row + Stored::kHeadBytes);
  return values % kStep == 0 && from % kIn == 0 && reinterpret_cast<uint64_t>(to) % kOut == 0;
}

// kStep values at a time: a lane writes up to 16 bytes.
template <class Stored, int64_t kStep>
GLT_DEVICE void decode_steps(const char* row, float* to, int64_t values, uint32_t lane, uint32_t lanes) {
  using In = Pack<typename Stored::Value, kStep>;
  using Out = Pack<float, kStep>;
  const Stored stored(static_cast<const char*>(__builtin_assume_aligned(row, sizeof(In))));
  const char* const from = row + Stored::kHeadBytes;
  for (int64_t k = first_word(from, sizeof(In), lane, lanes); k < values / kStep; k += lanes) {
    const In in = reinterpret_cast<const In*>(from)[k];
    Out meant;
    for (int64_t j = 0; j < kStep; ++j) meant.at[j] = stored.meant(in.at[j]);
    reinterpret_cast<Out*>(to)[k] = meant;
  }
}

// All lanes of a row take the same branch.
template <class Stored>
struct DecodeRow {
  float* out;
  int64_t values;

  GLT_DEVICE void operator()(const char* row, int64_t i, uint32_t lane, uint32_t lanes) const {
    float* const to = out + i * values;
    if (is_for_steps<Stored, 4>(row, to, values)) decode_steps<Stored, 4>(row, to, values, lane, lanes);
    else if (is_for_steps<Stored, 2>(row, to, values)) decode_steps<Stored, 2>(row, to, values, lane, lanes);
    else decode_steps<Stored, 1>(row, to, values, lane, lanes);
  }
};

template <class Stored>
int32_t decode_rows(const Shards& a, int64_t values, const int64_t* ids, int64_t n, float* out, int64_t* error,
                    int64_t* detail, void* stream) {
  const int64_t out_bytes = values * int64_t(sizeof(float));
  return each_row(a, ids, n, out_bytes, DecodeRow<Stored>{out, values}, error, detail, stream);
}

}  // namespace
}  // namespace glt

int32_t glt_cuda_gather_decode(const void* const* shards, const int64_t* strides, const int64_t* bounds,
                               int32_t num_shards, int32_t encoding, int64_t values, const int64_t* ids, int64_t n,
                               float* out, int64_t* error, int64_t* detail, void* stream) try {
  using namespace glt;
  if (num_shards < 1 || !is_stored_row(encoding, values)) return fail(detail, GLT_BAD_ARG, encoding, values);
  const Shards a{shards, bounds, num_shards, stored_bytes(encoding, values), strides};
  auto run = encoding == GLT_FLOAT16 ? decode_rows<Float16>
                                     : (encoding == GLT_BFLOAT16 ? decode_rows<Bfloat16> : decode_rows<Int8>);
  return run(a, values, ids, n, out, error, detail, stream);
}
GLT_CATCH(detail)
