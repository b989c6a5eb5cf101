// The loops of aggregation, plain for the compiler to vectorise. A body makes rows [begin, end) of its result, whose values in
// memory are `stride` apart from row to row: all of them, or on a device, where each value of the result has a thread, one column.
#pragma once
#include <cstdint>

#include "stored.h"

namespace glt {

struct Brain {  // a bfloat16
  uint16_t bits;
};

GLT_HD_INLINE float value_of(float v) { return v; }
GLT_HD_INLINE double value_of(double v) { return v; }
GLT_HD_INLINE float value_of(Brain v) { return float_of(uint32_t(v.bits) << 16); }

GLT_HD_INLINE void put(float* at, float v) { *at = v; }
GLT_HD_INLINE void put(double* at, double v) { *at = v; }
GLT_HD_INLINE void put(Brain* at, float v) {  // to the nearest, of two to the even one; NaN stays NaN
  const uint32_t bits = bits_of(v);
  const uint32_t nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  at->bits = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : nearest);
}

template <class T>
using Sum = decltype(value_of(T()));

// a * b, rounded before anything is added to it, on every device: those that could do both in one step would give other bits.
GLT_HD_INLINE float times(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
GLT_HD_INLINE double times(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// The lists of rows that each row of a result is computed from: those of a destination's edges or, transposed, of a source's.
struct Lists {
  const int64_t* indptr;
  const int64_t* row;   // of each entry; null: the entry's own number
  const int64_t* edge;  // of each entry; null: the entry's own number

  GLT_HD_INLINE int64_t row_of(int64_t p) const { return row ? row[p] : p; }
  GLT_HD_INLINE int64_t edge_of(int64_t p) const { return edge ? edge[p] : p; }
};

// Begins to load the row that will be read some KiB of rows later. Measured: 2 to 8 KiB are alike, rows of 200 to 1024 bytes.
// Not on a device, whose other warps go on meanwhile.
#ifdef __CUDA_ARCH__
struct Ahead {
  template <class T>
  __device__ __forceinline__ Ahead(const Lists&, const T*, int64_t, int64_t) {}
  __device__ __forceinline__ void operator()(int64_t) const {}
};
#else
struct Ahead {
  const Lists& lists;
  const char* rows;
  int64_t row_bytes, distance, last;

  template <class T>
  GLT_HD_INLINE Ahead(const Lists& l, const T* x, int64_t width, int64_t end)
      : lists(l), rows(reinterpret_cast<const char*>(x)), row_bytes(width * int64_t(sizeof(T))),
        distance(1 + 4096 / (1 + row_bytes)), last(l.row ? l.indptr[end] : 0) {}

  GLT_HD_INLINE void operator()(int64_t p) const {
    if (p + distance >= last) return;
    const char* next = rows + lists.row[p + distance] * row_bytes;
    for (int64_t b = 0; b < row_bytes; b += 64) __builtin_prefetch(next + b, 0, 3);
  }
};
#endif

template <class T>
struct SumRows {
  Lists lists;
  int64_t width, heads;
  bool mean;
  const T* x;
  const T* weights;     // [E, heads], or null
  const Sum<T>* scale;  // a factor for each row of x, or null
  T* out;
  int64_t stride = width, edge_heads = heads;

  GLT_HD_INLINE SumRows column(int64_t k) const {
    SumRows one = *this;
    one.x += k, one.out += k;
    if (weights) one.weights += k / (width / heads);
    one.width = one.heads = 1;
    return one;
  }

  GLT_HD_INLINE void add(int64_t p, Sum<T>* GLT_RESTRICT sum) const {
    const T* GLT_RESTRICT row = x + lists.row_of(p) * stride;
    if (!weights && !scale) {
      for (int64_t k = 0; k < width; ++k) sum[k] += value_of(row[k]);
      return;
    }
    const Sum<T> factor = scale ? scale[lists.row_of(p)] : Sum<T>(1);
    const int64_t part = width / heads;
    for (int64_t h = 0; h < heads; ++h) {
      const Sum<T> weight = weights ? times(factor, value_of(weights[lists.edge_of(p) * edge_heads + h])) : factor;
      for (int64_t k = h * part; k < (h + 1) * part; ++k) sum[k] += times(weight, value_of(row[k]));
    }
  }

  GLT_HD_INLINE void operator()(int64_t begin, int64_t end, Sum<T>* GLT_RESTRICT sum) const {
    const Ahead ahead(lists, x, width, end);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = lists.indptr[i], behind = lists.indptr[i + 1];
      for (int64_t k = 0; k < width; ++k) sum[k] = 0;
      for (int64_t p = first; p < behind; ++p) {
        ahead(p);
        add(p, sum);
      }
      const Sum<T> count = mean && behind > first ? Sum<T>(behind - first) : Sum<T>(1);
      for (int64_t k = 0; k < width; ++k) put(out + i * stride + k, sum[k] / count);
    }
  }
};

template <class T, bool kLeast>
struct ExtremeRows {
  Lists lists;
  int64_t width;
  const T* x;
  T* out;
  int64_t stride = width;

  GLT_HD_INLINE ExtremeRows column(int64_t k) const { return {lists, 1, x + k, out + k, stride}; }

  GLT_HD_INLINE void operator()(int64_t begin, int64_t end, Sum<T>* GLT_RESTRICT found) const {
    const Ahead ahead(lists, x, width, end);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = lists.indptr[i], behind = lists.indptr[i + 1];
      for (int64_t k = 0; k < width; ++k) found[k] = 0;
      for (int64_t p = first; p < behind; ++p) {
        ahead(p);
        const T* GLT_RESTRICT row = x + lists.row_of(p) * stride;
        for (int64_t k = 0; k < width; ++k) {
          const Sum<T> v = value_of(row[k]);
          const bool further = kLeast ? v < found[k] : v > found[k];
          found[k] = ((p == first) | further | (v != v)) ? v : found[k];
        }
      }
      for (int64_t k = 0; k < width; ++k) put(out + i * stride + k, found[k]);
    }
  }
};

// The factor of each of a destination's edges in a mean.
template <class S>
struct MeanShares {
  const int64_t* indptr;
  S* out;

  GLT_HD_INLINE void operator()(int64_t i) const {
    const int64_t count = indptr[i + 1] - indptr[i];
    out[i] = S(1) / S(count > 1 ? count : 1);
  }
};

// The gradient of each extreme, which goes to one of the sources that have its value.
template <class T>
struct ShareRows {
  Lists lists;
  int64_t width;
  const T *x, *extremes, *grad;
  Sum<T>* out;
  int64_t stride = width;

  GLT_HD_INLINE ShareRows column(int64_t k) const { return {lists, 1, x + k, extremes + k, grad + k, out + k, stride}; }

  GLT_HD_INLINE void operator()(int64_t begin, int64_t end, Sum<T>* GLT_RESTRICT equal) const {
    const Ahead ahead(lists, x, width, end);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = 0; k < width; ++k) equal[k] = 0;
      for (int64_t p = lists.indptr[i]; p < lists.indptr[i + 1]; ++p) {
        ahead(p);
        const T* GLT_RESTRICT row = x + lists.row_of(p) * stride;
        for (int64_t k = 0; k < width; ++k)
          equal[k] += value_of(row[k]) == value_of(extremes[i * stride + k]) ? Sum<T>(1) : Sum<T>(0);
      }
      for (int64_t k = 0; k < width; ++k) out[i * stride + k] = value_of(grad[i * stride + k]) / equal[k];
    }
  }
};

template <class T>
struct ExtremeGradRows {
  Lists lists;  // transposed
  int64_t width;
  const T *x, *extremes;
  const Sum<T>* share;
  T* out;
  int64_t stride = width;

  GLT_HD_INLINE ExtremeGradRows column(int64_t k) const {
    return {lists, 1, x + k, extremes + k, share + k, out + k, stride};
  }

  GLT_HD_INLINE void operator()(int64_t begin, int64_t end, Sum<T>* GLT_RESTRICT sum) const {
    const Ahead ahead(lists, extremes, width, end);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = 0; k < width; ++k) sum[k] = 0;
      for (int64_t p = lists.indptr[i]; p < lists.indptr[i + 1]; ++p) {
        ahead(p);
        const int64_t at = lists.row_of(p) * stride;
        for (int64_t k = 0; k < width; ++k)
          sum[k] += value_of(x[i * stride + k]) == value_of(extremes[at + k]) ? share[at + k] : Sum<T>(0);
      }
      for (int64_t k = 0; k < width; ++k) put(out + i * stride + k, sum[k]);
    }
  }
};

// A product of rows is the sum of 16 partial sums, of every 16th product each. The order is fixed here, so that all devices and
// compilers give the same bits.
constexpr int64_t kProductLanes = 16;

template <class S>
GLT_HD_INLINE S sum_of_lanes(const S* lane) {
  S all = 0;
  for (int64_t l = 0; l < kProductLanes; ++l) all += lane[l];
  return all;
}

// Products of an edge's row of x and its destination's row of the gradient, for each head.
template <class T>
struct WeightRows {
  Lists lists;
  int64_t width, heads;
  bool mean;
  const T *x, *grad;
  T* out;

  GLT_HD_INLINE Sum<T> product(const T* GLT_RESTRICT a, const T* GLT_RESTRICT b, int64_t n) const {
    Sum<T> lane[kProductLanes] = {};
    int64_t k = 0;
    for (; k + kProductLanes <= n; k += kProductLanes)
      for (int64_t l = 0; l < kProductLanes; ++l) lane[l] += times(value_of(a[k + l]), value_of(b[k + l]));
    for (int64_t l = 0; k + l < n; ++l) lane[l] += times(value_of(a[k + l]), value_of(b[k + l]));
    return sum_of_lanes(lane);
  }

  GLT_HD_INLINE void operator()(int64_t begin, int64_t end, Sum<T>*) const {
    const Ahead ahead(lists, x, width, end);
    const int64_t part = width / heads;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = lists.indptr[i], behind = lists.indptr[i + 1];
      const Sum<T> count = mean ? Sum<T>(behind - first) : Sum<T>(1);
      for (int64_t p = first; p < behind; ++p) {
        ahead(p);
        for (int64_t h = 0; h < heads; ++h)
          put(out + p * heads + h,
              product(x + lists.row_of(p) * width + h * part, grad + i * width + h * part, part) / count);
      }
    }
  }
};

}  // namespace glt
