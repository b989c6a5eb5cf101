// Gathering rows that are stored in fewer bytes than they are used in.
//
// The loops over a row are plain, for the compiler to vectorise: once for the baseline of the processor and, on x86-64, once
// for AVX2, which is chosen when the library is called. A call per row costs little beside its cache misses.
#include <glt/decode.h>

#include <algorithm>
#include <cstring>

#include "each_row.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define GLT_WIDE __attribute__((target("avx2,f16c")))
#endif
#define GLT_INLINE __attribute__((always_inline)) inline  // also into a function for a wider instruction set

namespace glt {
namespace {

using DecodeRow = void (*)(const char* row, int64_t values, float* out);

GLT_INLINE float float_of(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

GLT_INLINE uint32_t bits_of(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

template <class T>
GLT_INLINE T load(const char* at) {  // rows of int8 begin anywhere
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Masks, as branches would not be vectorised. No denormal float on the way: a thread may be set to drop those.
GLT_INLINE void float16_row(const char* row, int64_t values, float* __restrict out) {
  for (int64_t k = 0; k < values; ++k) {
    const uint32_t half = load<uint16_t>(row + 2 * k), magnitude = half & 0x7fff;
    const uint32_t is_small = -uint32_t(magnitude < 0x0400), is_special = -uint32_t(magnitude >= 0x7c00);
    const uint32_t normal = (magnitude << 13) + (uint32_t(127 - 15) << 23);
    const uint32_t small = bits_of(float_of(0x3f000000 | magnitude) - 0.5f);  // 0.5 + magnitude * 2^-24 is exact
    const uint32_t bits = (normal & ~is_small) | (small & is_small) | (is_special & 0x7f800000);
    out[k] = float_of(bits | (half & 0x8000) << 16);
  }
}

GLT_INLINE void bfloat16_row(const char* row, int64_t values, float* __restrict out) {
  for (int64_t k = 0; k < values; ++k) out[k] = float_of(uint32_t(load<uint16_t>(row + 2 * k)) << 16);
}

GLT_INLINE void int8_row(const char* row, int64_t values, float* __restrict out) {
  const float scale = load<float>(row);
  const auto* bytes = reinterpret_cast<const int8_t*>(row + sizeof scale);
  for (int64_t k = 0; k < values; ++k) out[k] = scale * float(bytes[k]);
}

struct Encoding {
  int64_t head_bytes, value_bytes;
  DecodeRow decode;
};

// By the number of the encoding.
constexpr Encoding kBaseline[] = {
    {},
    {0, 2, [](const char* row, int64_t values, float* out) { float16_row(row, values, out); }},
    {0, 2, [](const char* row, int64_t values, float* out) { bfloat16_row(row, values, out); }},
    {4, 1, [](const char* row, int64_t values, float* out) { int8_row(row, values, out); }},
};

#ifdef GLT_WIDE
GLT_WIDE void wide_float16_row(const char* row, int64_t values, float* out) {  // the processor's own conversion
  if (values < 8) return float16_row(row, values, out);
  for (int64_t k = 0; k < values; k += 8) {
    const int64_t at = std::min(k, values - 8);  // the last eight may overlap those before
    _mm256_storeu_ps(out + at, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * at))));
  }
}
GLT_WIDE void wide_bfloat16_row(const char* row, int64_t values, float* out) { bfloat16_row(row, values, out); }
GLT_WIDE void wide_int8_row(const char* row, int64_t values, float* out) { int8_row(row, values, out); }

constexpr Encoding kWide[] = {{}, {0, 2, wide_float16_row}, {0, 2, wide_bfloat16_row}, {4, 1, wide_int8_row}};

bool is_wide() {
  static const bool wide = [] {
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  }();
  return wide;
}
#endif

const Encoding& encoding_of(int32_t number) {
#ifdef GLT_WIDE
  if (is_wide()) return kWide[number];
#endif
  return kBaseline[number];
}

}  // namespace
}  // namespace glt

int32_t glt_gather_decode(const void* const* shards, const int64_t* bounds, int32_t num_shards, int32_t encoding,
                          int64_t values, const int64_t* ids, int64_t n, float* out, int32_t threads, int64_t* detail) {
  if (encoding < GLT_FLOAT16 || encoding > GLT_INT8 || values < 0) return glt::fail(detail, GLT_BAD_ARG, encoding, values);
  const glt::Encoding e = glt::encoding_of(encoding);
  const glt::Shards a{shards, bounds, num_shards, e.head_bytes + values * e.value_bytes};
  return glt::share_rows(ids, n, values * int64_t(sizeof(float)), threads, detail, [&](int64_t begin, int64_t end) {
    return glt::each_row(a, ids, begin, end, [=](const char* row, int64_t i) { e.decode(row, values, out + i * values); });
  });
}
