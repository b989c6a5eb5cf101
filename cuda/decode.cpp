// Gathering rows that are stored in fewer bytes than they are used in.
//
// The loops over a row are plain, for the compiler to vectorise: once for the baseline of the processor and, on x86-64, once
// for AVX2, which is chosen when the library is called. A call per row costs little beside its cache misses.
#include <glt/decode.h>

#include <algorithm>

#include "each_row.h"
#include "guard.h"
#include "stored.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define GLT_WIDE __attribute__((target("avx2,f16c")))
#endif

namespace glt {
namespace {

using DecodeRow = void (*)(const char* row, int64_t values, float* out);

template <class Stored>
GLT_HD_INLINE void decode_row(const char* row, int64_t values, float* __restrict out) {
  using Value = typename Stored::Value;
  const Stored stored(row);
  row += Stored::kHeadBytes;
  for (int64_t k = 0; k < values; ++k) out[k] = stored.meant(load<Value>(row + k * int64_t(sizeof(Value))));
}

// By the number of the encoding.
constexpr DecodeRow kBaseline[] = {nullptr, decode_row<Float16>, decode_row<Bfloat16>, decode_row<Int8>};

#ifdef GLT_WIDE
template <class Stored>
GLT_WIDE void decode_wide(const char* row, int64_t values, float* out) {
  decode_row<Stored>(row, values, out);
}

template <>
GLT_WIDE void decode_wide<Float16>(const char* row, int64_t values, float* out) {  // the processor's own conversion
  if (values < 8) return decode_row<Float16>(row, values, out);
  for (int64_t k = 0; k < values; k += 8) {
    const int64_t at = std::min(k, values - 8);  // the last eight may overlap those before
    _mm256_storeu_ps(out + at, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * at))));
  }
}

constexpr DecodeRow kWide[] = {nullptr, decode_wide<Float16>, decode_wide<Bfloat16>, decode_wide<Int8>};

bool is_wide() {
  static const bool wide = [] {
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  }();
  return wide;
}
#endif

DecodeRow decoder_of(int32_t encoding) {
#ifdef GLT_WIDE
  if (is_wide()) return kWide[encoding];
#endif
  return kBaseline[encoding];
}

}  // namespace
}  // namespace glt

int32_t glt_gather_decode(const void* const* shards, const int64_t* bounds, int32_t num_shards, int32_t encoding,
                          int64_t values, const int64_t* ids, int64_t n, float* out, int32_t threads, int64_t* detail) try {
  if (!glt::is_stored_row(encoding, values)) return glt::fail(detail, GLT_BAD_ARG, encoding, values);
  const auto decode = glt::decoder_of(encoding);
  const glt::Shards a{shards, bounds, num_shards, glt::stored_bytes(encoding, values)};
  return glt::share_rows(ids, n, values * int64_t(sizeof(float)), threads, detail, [&](int64_t begin, int64_t end) {
    return glt::each_row(a, ids, begin, end, [=](const char* row, int64_t i) { decode(row, values, out + i * values); });
  });
}
GLT_CATCH(detail)
