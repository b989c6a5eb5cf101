// ReLU and dropout in one pass. torch's takes four (ReLU, mask, product, scale) and draws its mask from one sequential
// generator: 0.3 s for 36 M elements, a third of a training step of GraphSAGE(256), where this takes a tenth of that.
#include <glt/relu_dropout.h>

#include "aggregate_bodies.h"
#include "guard.h"
#include "random.h"
#include "threads.h"
#include "wide.h"

namespace glt {
namespace {

// 32 bits of a counter, well mixed: two rounds of xorshift and multiply (the constants are Wellons' lowbias32).
GLT_HD_INLINE uint32_t mixed(uint32_t v) {
  v = (v ^ (v >> 16)) * 0x7feb352du;
  v = (v ^ (v >> 15)) * 0x846ca68bu;
  return v ^ (v >> 16);
}

template <class T>
struct Drop {
  const T* x;
  int64_t width;
  uint64_t seed;
  uint32_t dropped;  // of 2^32 numbers
  Sum<T> scale;
  T* out;

  GLT_HD_INLINE void operator()(int64_t begin, int64_t end) const {
    constexpr int64_t kChunk = 256;  // drawn, then used: as one loop gcc finds branches and vectorises nothing
    Sum<T> kept[kChunk];
    const Sum<T> factor = scale;
    const uint32_t threshold = dropped;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t key = mix(seed + uint64_t(i) * kGolden);
      for (int64_t from = 0; from < width; from += kChunk) {
        const int64_t n = width - from < kChunk ? width - from : kChunk;
        const T* __restrict row = x + i * width + from;
        T* __restrict to = out + i * width + from;
        const uint32_t first = uint32_t(key) + uint32_t(from), second = uint32_t(key >> 32);
        for (int64_t k = 0; k < n; ++k) {
          const uint32_t drawn = mixed(mixed(first + uint32_t(k)) ^ second);
          kept[k] = drawn < threshold ? Sum<T>(0) : factor;
        }
        for (int64_t k = 0; k < n; ++k) {
          const Sum<T> v = value_of(row[k]);
          put(to + k, (v < 0 ? Sum<T>(0) : v) * kept[k]);
        }
      }
    }
  }
};

template <class T>
struct DropGrad {
  const T *grad, *kept;
  Sum<T> scale;
  T* out;

  GLT_HD_INLINE void operator()(int64_t begin, int64_t end) const {
    const T *__restrict g = grad, *__restrict y = kept;
    T* __restrict to = out;
    const Sum<T> factor = scale;
    for (int64_t k = begin; k < end; ++k) {
      const Sum<T> kept = value_of(y[k]) <= 0 ? Sum<T>(0) : factor;
      put(to + k, value_of(g[k]) * kept);
    }
  }
};

constexpr int64_t kGrain = int64_t(1) << 16;  // elements: below that a thread costs more than it saves

template <class T>
Sum<T> scale(int64_t dropped) {
  return Sum<T>(4294967296.0 / (4294967296.0 - double(dropped)));
}

bool is_sound(int32_t values, int64_t rows, int64_t width, int64_t dropped) {
  return values >= GLT_VALUES_FLOAT32 && values <= GLT_VALUES_BFLOAT16 && rows >= 0 && width >= 0 && dropped >= 0 && dropped <= UINT32_MAX;
}

template <class T>
void drop(const void* x, int64_t rows, int64_t width, int64_t dropped, int64_t seed, int32_t threads, void* out) {
  const Drop<T> body{static_cast<const T*>(x), width, uint64_t(seed), uint32_t(dropped), scale<T>(dropped),
                     static_cast<T*>(out)};
  parallel(rows, threads, 1 + kGrain / (1 + width), [&](int64_t begin, int64_t end, int) { run_wide(body, begin, end); });
}

template <class T>
void drop_grad(const void* grad, const void* kept, int64_t n, int64_t dropped, int32_t threads, void* out) {
  const DropGrad<T> body{static_cast<const T*>(grad), static_cast<const T*>(kept), scale<T>(dropped), static_cast<T*>(out)};
  parallel(n, threads, kGrain, [&](int64_t begin, int64_t end, int) { run_wide(body, begin, end); });
}

}  // namespace
}  // namespace glt

int32_t glt_relu_dropout(int32_t values, const void* x, int64_t rows, int64_t width, int64_t dropped, int64_t seed,
                         int32_t threads, void* out, int64_t* detail) try {
  if (!glt::is_sound(values, rows, width, dropped)) return glt::fail(detail, GLT_BAD_ARG, values, rows, width);
  if (values == GLT_VALUES_FLOAT32) glt::drop<float>(x, rows, width, dropped, seed, threads, out);
  if (values == GLT_VALUES_FLOAT64) glt::drop<double>(x, rows, width, dropped, seed, threads, out);
  if (values == GLT_VALUES_BFLOAT16) glt::drop<glt::Brain>(x, rows, width, dropped, seed, threads, out);
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_relu_dropout_grad(int32_t values, const void* grad, const void* out, int64_t n, int64_t dropped, int32_t threads,
                              void* grad_x, int64_t* detail) try {
  if (!glt::is_sound(values, n, 1, dropped)) return glt::fail(detail, GLT_BAD_ARG, values, n);
  if (values == GLT_VALUES_FLOAT32) glt::drop_grad<float>(grad, out, n, dropped, threads, grad_x);
  if (values == GLT_VALUES_FLOAT64) glt::drop_grad<double>(grad, out, n, dropped, threads, grad_x);
  if (values == GLT_VALUES_BFLOAT16) glt::drop_grad<glt::Brain>(grad, out, n, dropped, threads, grad_x);
  return GLT_OK;
}
GLT_CATCH(detail)
