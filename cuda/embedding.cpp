// Trained rows: sums of the gradients of each row, and the steps of the sparse optimizers.
#include <glt/embedding.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "graph.h"
#include "guard.h"
#include "threads.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define GLT_WIDE __attribute__((target("avx2")))
#endif

namespace glt {
namespace {

constexpr int64_t kValues = 1 << 15;  // values that are worth a thread
constexpr int kDigit = 11;            // bits of a pass of the sort: its counts stay in the first cache

int64_t grain(int64_t width) { return std::max<int64_t>(1, kValues / std::max<int64_t>(1, width)); }

// A row, counted from the least one, and its position in the list of rows. Word: 32 bits, where they do, sort in half the time.
template <class Word>
struct Occurrence {
  Word row, position;
};

// The rows [n] in ascending order; equal ones stay in their order. span: of the rows, the greatest less the least.
template <class Word>
std::vector<Occurrence<Word>> in_order(const int64_t* rows, int64_t n, int64_t least, uint64_t span) {
  std::vector<Occurrence<Word>> found(n), other;
  bool sorted = true;
  for (int64_t i = 0; i < n; ++i) {
    found[i] = {Word(uint64_t(rows[i]) - uint64_t(least)), Word(i)};
    sorted = sorted && (i == 0 || rows[i - 1] <= rows[i]);
  }
  if (!sorted) other.resize(n);
  for (int shift = 0; !sorted && shift < 64 && span >> shift; shift += kDigit) {
    constexpr Word mask = (Word(1) << kDigit) - 1;
    int64_t next[size_t(mask) + 1] = {};
    for (const auto& each : found) ++next[(each.row >> shift) & mask];
    int64_t begin = 0;
    for (int64_t& at : next) std::swap(begin, at), begin += at;
    for (const auto& each : found) other[next[(each.row >> shift) & mask]++] = each;
    found.swap(other);
  }
  return found;
}

// The sums of the rows [begin, end) of `merged`, whose occurrences begin at first[row] of `order`.
template <class Word>
void add_rows(const float* values, int64_t width, const Occurrence<Word>* order, const int64_t* first, int64_t begin,
              int64_t end, float* sums) {
  for (int64_t row = begin; row < end; ++row) {
    float* __restrict to = sums + row * width;
    std::memcpy(to, values + int64_t(order[first[row]].position) * width, width * sizeof(float));
    for (int64_t i = first[row] + 1; i < first[row + 1]; ++i) {
      const float* __restrict from = values + int64_t(order[i].position) * width;
      for (int64_t k = 0; k < width; ++k) to[k] += from[k];
    }
  }
}

struct Given {
  const int64_t* rows;
  const float* values;
  const int64_t* counts;
  int64_t n, width, least;
  uint64_t span;
};

struct Merged {
  int64_t* rows;
  float* sums;
  int64_t *counts, *at;
};

// Returns the number of distinct rows. If all are, `at` is filled, else the sums are.
template <class Word>
int64_t merge(const Given& given, const Merged& out, int32_t threads) {
  const std::vector<Occurrence<Word>> order = in_order<Word>(given.rows, given.n, given.least, given.span);
  std::vector<int64_t> first;
  first.reserve(given.n + 1);
  for (int64_t i = 0; i < given.n; ++i) {
    const Occurrence<Word> each = order[i];
    if (!i || order[i - 1].row != each.row) {
      out.rows[first.size()] = int64_t(uint64_t(given.least) + each.row);
      out.counts[first.size()] = 0;
      first.push_back(i);
    }
    out.counts[first.size() - 1] += given.counts ? given.counts[each.position] : 1;
  }
  const int64_t num = int64_t(first.size());
  if (num == given.n) {
    for (int64_t i = 0; i < num; ++i) out.at[i] = int64_t(order[i].position);
    return num;
  }
  first.push_back(given.n);
  parallel(num, threads, grain(given.width), [&](int64_t begin, int64_t end, int) {
    add_rows(given.values, given.width, order.data(), first.data(), begin, end, out.sums);
  });
  return num;
}

struct Adjust {
  float factor, clip_value;
  double clip_norm;
  float divisor;

  bool divides(const glt_row_gradients& all) const { return all.counts || divisor != 1; }
  bool changes(const glt_row_gradients& all) const {
    return divides(all) || factor != 1 || clip_value < INFINITY || clip_norm < double(INFINITY);
  }
  float under(const glt_row_gradients& all, int64_t i) const { return all.counts ? float(all.counts[i]) : divisor; }

  // g [width] of a row, ready to use, into `out`.
  void apply(const float* g, float under, int64_t width, float* __restrict out) const {
    if (under != 1) {
      for (int64_t k = 0; k < width; ++k) out[k] = g[k] / under * factor;
    } else {
      for (int64_t k = 0; k < width; ++k) out[k] = g[k] * factor;
    }
    if (clip_value < INFINITY)
      for (int64_t k = 0; k < width; ++k) out[k] = out[k] < -clip_value ? -clip_value : out[k] > clip_value ? clip_value : out[k];
    if (!(clip_norm < double(INFINITY))) return;
    double squares = 0;
    for (int64_t k = 0; k < width; ++k) squares += double(out[k]) * double(out[k]);
    const double norm = std::sqrt(squares);
    if (!(norm > clip_norm)) return;
    const float scale = float(clip_norm / norm);
    for (int64_t k = 0; k < width; ++k) out[k] *= scale;
  }
};

// base^n by repeated squaring: libm's pow differs between machines.
double power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base)
    if (n & 1) result *= base;
  return result;
}

constexpr int64_t kAhead = 8;  // rows by which prefetches lead; 1.4 times the rate for rows in random order

inline void fetch(const float* array, int64_t row, int64_t width) {
  const char* begin = reinterpret_cast<const char*>(array + row * width);
  for (int64_t at = 0; at < width * int64_t(sizeof(float)); at += 64) __builtin_prefetch(begin + at, 1);
}

struct Sgd {
  float* weight;
  float lr;

  inline void ahead(int64_t row, int64_t width) const { fetch(weight, row, width); }

  inline void step(int64_t row, const float* __restrict g, int64_t width) const {
    float* __restrict w = weight + row * width;
    for (int64_t k = 0; k < width; ++k) w[k] -= lr * g[k];
  }
};

struct Adagrad {
  float *weight, *sums;
  float lr, eps;

  inline void ahead(int64_t row, int64_t width) const { fetch(weight, row, width), fetch(sums, row, width); }

  inline void step(int64_t row, const float* __restrict g, int64_t width) const {
    float* __restrict w = weight + row * width;
    float* __restrict s = sums + row * width;
    for (int64_t k = 0; k < width; ++k) {
      s[k] += g[k] * g[k];
      w[k] -= lr * (g[k] / (std::sqrt(s[k]) + eps));
    }
  }
};

struct RowwiseAdagrad {
  float *weight, *sums;
  float lr, eps;

  inline void ahead(int64_t row, int64_t width) const { fetch(weight, row, width), fetch(sums, row, 1); }

  inline void step(int64_t row, const float* __restrict g, int64_t width) const {
    float* __restrict w = weight + row * width;
    double squares = 0;
    for (int64_t k = 0; k < width; ++k) squares += double(g[k]) * double(g[k]);
    sums[row] += float(squares / double(width));
    const float under = std::sqrt(sums[row]) + eps;
    for (int64_t k = 0; k < width; ++k) w[k] -= lr * (g[k] / under);
  }
};

// kByRow: corrections by the number of steps of each row; else the rate of the step has them.
template <bool kByRow>
struct Adam {
  float *weight, *first, *second;
  int32_t* steps;
  double beta1, beta2, rate;
  float lr, eps, left1, left2;  // lr: of a step by the global count, with its corrections

  inline void ahead(int64_t row, int64_t width) const {
    fetch(weight, row, width), fetch(first, row, width), fetch(second, row, width);
    if constexpr (kByRow) __builtin_prefetch(steps + row, 1);
  }

  inline void step(int64_t row, const float* __restrict g, int64_t width) const {
    float* __restrict w = weight + row * width;
    float* __restrict m = first + row * width;
    float* __restrict v = second + row * width;
    float size = lr, by1 = 1, by2 = 1;
    if constexpr (kByRow) {
      const int64_t t = ++steps[row];
      by1 = float(1 - power(beta1, t)), by2 = float(1 - power(beta2, t)), size = float(rate);
    }
    for (int64_t k = 0; k < width; ++k) {
      m[k] += (g[k] - m[k]) * left1;
      v[k] += (g[k] * g[k] - v[k]) * left2;
      if constexpr (kByRow) w[k] -= size * ((m[k] / by1) / (std::sqrt(v[k] / by2) + eps));
      else w[k] -= size * (m[k] / (std::sqrt(v[k]) + eps));
    }
  }
};

inline const float* value_of(const glt_row_gradients& all, int64_t i) {
  return static_cast<const float*>(all.values) + (all.at ? all.at[i] : i) * all.width;
}

// The step of the rows [begin, end) of the gradients.
template <class Rule>
inline void run(const Rule& rule, const glt_row_gradients& all, const Adjust& adjust, int64_t begin, int64_t end) {
  std::vector<float> room(all.width);
  const bool changes = adjust.changes(all);
  for (int64_t i = begin; i < end; ++i) {
    if (i + kAhead < end) {
      rule.ahead(all.rows[i + kAhead], all.width);
      if (all.at) fetch(value_of(all, i + kAhead), 0, all.width);
    }
    const float* g = value_of(all, i);
    if (changes) {
      adjust.apply(g, adjust.under(all, i), all.width, room.data());
      g = room.data();
    }
    rule.step(all.rows[i], g, all.width);
  }
}

// The sums of squares of the rows [begin, end).
inline void add_squares(const glt_row_gradients& all, const Adjust& adjust, int64_t begin, int64_t end, double* out) {
  constexpr int64_t kLanes = 8;
  std::vector<float> room(all.width);
  for (int64_t i = begin; i < end; ++i) {
    if (all.at && i + kAhead < end) fetch(value_of(all, i + kAhead), 0, all.width);
    const float* g = value_of(all, i);
    if (adjust.divides(all)) {
      const float under = adjust.under(all, i);
      for (int64_t k = 0; k < all.width; ++k) room[k] = g[k] / under;
      g = room.data();
    }
    double s[kLanes] = {};
    int64_t k = 0;
    for (; k + kLanes <= all.width; k += kLanes)
      for (int64_t lane = 0; lane < kLanes; ++lane) s[lane] += double(g[k + lane]) * double(g[k + lane]);
    for (int64_t lane = 0; k + lane < all.width; ++lane) s[lane] += double(g[k + lane]) * double(g[k + lane]);
    out[i] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
}

#ifdef GLT_WIDE
template <class Rule>
GLT_WIDE __attribute__((flatten)) void run_wide(const Rule& rule, const glt_row_gradients& all, const Adjust& adjust,
                                                int64_t begin, int64_t end) {
  run(rule, all, adjust, begin, end);
}

GLT_WIDE __attribute__((flatten)) void add_squares_wide(const glt_row_gradients& all, const Adjust& adjust, int64_t begin,
                                                        int64_t end, double* out) {
  add_squares(all, adjust, begin, end, out);
}

bool is_wide() {
  static const bool wide = (__builtin_cpu_init(), __builtin_cpu_supports("avx2"));
  return wide;
}
#endif

Adjust adjust_of(const glt_row_gradients& all) {
  const double* given = static_cast<const double*>(all.adjust);
  return {float(given[0]), float(given[1]), given[2], float(given[3])};
}

int32_t bad_rows(const glt_row_gradients& all, int64_t* detail) {
  for (int64_t i = 0; i < all.n; ++i) {
    if (uint64_t(all.rows[i]) >= uint64_t(all.num_rows)) return fail(detail, GLT_BAD_ID, i, all.rows[i]);
    if (i && all.rows[i] <= all.rows[i - 1]) return fail(detail, GLT_BAD_ARG, i, all.rows[i]);
  }
  return GLT_OK;
}

template <class Rule>
int32_t step_rows(const Rule& rule, const glt_row_gradients& all, int32_t threads, int64_t* detail) {
  if (const int32_t status = bad_rows(all, detail)) return status;
  const Adjust adjust = adjust_of(all);
  auto* body = run<Rule>;
#ifdef GLT_WIDE
  if (is_wide()) body = run_wide<Rule>;
#endif
  parallel(all.n, threads, grain(all.width), [&](int64_t begin, int64_t end, int) { body(rule, all, adjust, begin, end); });
  return GLT_OK;
}

}  // namespace
}  // namespace glt

int32_t glt_merge_rows(const int64_t* rows, const void* values, const int64_t* counts, int64_t n, int64_t width,
                       int64_t* merged, void* sums, int64_t* merged_counts, int64_t* at, int64_t* num, int32_t threads,
                       int64_t* detail) try {
  *num = 0;
  if (!n) return GLT_OK;
  const auto [least, greatest] = std::minmax_element(rows, rows + n);
  const uint64_t span = uint64_t(*greatest) - uint64_t(*least), most = std::numeric_limits<uint32_t>::max();
  const glt::Given given{rows, static_cast<const float*>(values), counts, n, width, *least, span};
  const glt::Merged out{merged, static_cast<float*>(sums), merged_counts, at};
  *num = (span <= most && uint64_t(n) <= most ? glt::merge<uint32_t> : glt::merge<uint64_t>)(given, out, threads);
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_row_squares(const glt_row_gradients* gradients, void* squares, int32_t threads, int64_t* detail) try {
  const glt::Adjust adjust = glt::adjust_of(*gradients);
  auto* body = glt::add_squares;
#ifdef GLT_WIDE
  if (glt::is_wide()) body = glt::add_squares_wide;
#endif
  glt::parallel(gradients->n, threads, glt::grain(gradients->width), [&](int64_t begin, int64_t end, int) {
    body(*gradients, adjust, begin, end, static_cast<double*>(squares));
  });
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_sgd_rows(const glt_row_gradients* gradients, void* weight, const void* rule, int32_t threads,
                     int64_t* detail) try {
  const double* r = static_cast<const double*>(rule);
  return glt::step_rows(glt::Sgd{static_cast<float*>(weight), float(r[0])}, *gradients, threads, detail);
}
GLT_CATCH(detail)

int32_t glt_adagrad_rows(const glt_row_gradients* gradients, void* weight, void* sums, int32_t rowwise, const void* rule,
                         int32_t threads, int64_t* detail) try {
  const double* r = static_cast<const double*>(rule);
  float *w = static_cast<float*>(weight), *s = static_cast<float*>(sums);
  if (rowwise) return glt::step_rows(glt::RowwiseAdagrad{w, s, float(r[0]), float(r[1])}, *gradients, threads, detail);
  return glt::step_rows(glt::Adagrad{w, s, float(r[0]), float(r[1])}, *gradients, threads, detail);
}
GLT_CATCH(detail)

int32_t glt_adam_rows(const glt_row_gradients* gradients, void* weight, void* first, void* second, void* steps, int64_t step,
                      const void* rule, int32_t threads, int64_t* detail) try {
  const double* r = static_cast<const double*>(rule);
  const double corrected = r[0] * std::sqrt(1 - glt::power(r[2], step)) / (1 - glt::power(r[1], step));
  const auto take = [&](auto rule) {
    rule.weight = static_cast<float*>(weight), rule.first = static_cast<float*>(first), rule.second = static_cast<float*>(second);
    rule.steps = static_cast<int32_t*>(steps);
    rule.beta1 = r[1], rule.beta2 = r[2], rule.rate = r[0];
    rule.lr = float(corrected), rule.eps = float(r[3]), rule.left1 = float(1 - r[1]), rule.left2 = float(1 - r[2]);
    return glt::step_rows(rule, *gradients, threads, detail);
  };
  return step > 0 ? take(glt::Adam<false>{}) : take(glt::Adam<true>{});
}
GLT_CATCH(detail)
