// Decoding of rows that are stored in fewer bytes. One struct per encoding: made from a row, it decodes each value of the row.
// Host and device give the same bits (but for int8 with a scale that is no number).
#pragma once
#include <glt/decode.h>
#include <stdint.h>
#include <string.h>

#include "hd.h"

namespace glt {

GLT_HD_INLINE float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

GLT_HD_INLINE uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

template <class T>
GLT_HD_INLINE T load(const char* at) {  // rows of int8 begin anywhere
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

struct Float16 {
  using Value = uint16_t;
  static constexpr int64_t kHeadBytes = 0;

  GLT_HD_INLINE explicit Float16(const char*) {}

  // Masks, as branches would not be vectorised. No denormal float on the way: a thread may be set to drop those. NaN comes
  // out quiet, as from a processor's own conversion.
  GLT_HD_INLINE float meant(uint32_t half) const {
    const uint32_t magnitude = half & 0x7fff;
    const uint32_t is_small = -uint32_t(magnitude < 0x0400), is_special = -uint32_t(magnitude >= 0x7c00);
    const uint32_t is_nan = -uint32_t(magnitude > 0x7c00);
    const uint32_t normal = (magnitude << 13) + (uint32_t(127 - 15) << 23);
    const uint32_t small = bits_of(float_of(0x3f000000 | magnitude) - 0.5f);  // 0.5 + magnitude * 2^-24 is exact
    const uint32_t bits = (normal & ~is_small) | (small & is_small) | (is_special & 0x7f800000) | (is_nan & 0x00400000);
    return float_of(bits | (half & 0x8000) << 16);
  }
};

struct Bfloat16 {
  using Value = uint16_t;
  static constexpr int64_t kHeadBytes = 0;

  GLT_HD_INLINE explicit Bfloat16(const char*) {}
  GLT_HD_INLINE float meant(uint32_t upper) const { return float_of(upper << 16); }
};

struct Int8 {
  using Value = int8_t;
  static constexpr int64_t kHeadBytes = sizeof(float);

  float scale;

  GLT_HD_INLINE explicit Int8(const char* row) : scale(load<float>(row)) {}
  GLT_HD_INLINE float meant(int8_t steps) const { return scale * float(steps); }
};

inline bool is_stored_row(int32_t encoding, int64_t values) {
  return encoding >= GLT_FLOAT16 && encoding <= GLT_INT8 && values >= 0;
}

inline int64_t stored_bytes(int32_t encoding, int64_t values) {
  return encoding == GLT_INT8 ? Int8::kHeadBytes + values : 2 * values;
}

}  // namespace glt
