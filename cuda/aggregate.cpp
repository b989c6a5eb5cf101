// Aggregation over sorted edges. Each row of a result is made by one thread, in the order of its edges, so the number of
// threads changes no bit. The gradient of a sum is a sum over the same edges in the order of their sources, which is found by
// counting: it writes each row once, where adding to the rows of sources would clear and read them as well. Bound by memory:
// rows are prefetched, and nothing is stored per edge and column.
#include <glt/aggregate.h>

#include <algorithm>
#include <vector>

#include "aggregate_bodies.h"
#include "aggregate_check.h"
#include "guard.h"
#include "threads.h"
#include "wide.h"

namespace glt {
namespace {

// The first list of part t of `parts`, which all have about the same number of entries and lists.
int64_t first_list(const int64_t* indptr, int64_t lists, int64_t t, int64_t parts) {
  const double wanted = double(indptr[lists] - indptr[0] + lists) * double(t) / double(parts);
  int64_t low = 0, high = lists;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (double(indptr[middle] - indptr[0] + middle) < wanted)
      low = middle + 1;
    else
      high = middle;
  }
  return t == parts ? lists : low;
}

template <class S, class Body>
void run(const Body& body, int64_t lists, int64_t width, int32_t threads) {
  constexpr int64_t kGrain = int64_t(1) << 18;  // values read: below that a thread costs more than it saves
  const int64_t* indptr = body.lists.indptr;
  const int64_t work = (indptr[lists] - indptr[0] + lists) * std::max<int64_t>(1, width);
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, work / kGrain));
  parallel(parts, int32_t(parts), 1, [&](int64_t from, int64_t to, int) {
    std::vector<S> row(std::max<int64_t>(1, width));
    const int64_t begin = first_list(indptr, lists, from, parts), end = first_list(indptr, lists, to, parts);
    run_wide(body, begin, end, row.data());
  });
}

Lists by_destination(const glt_edges& e) { return {e.indptr, e.src, nullptr}; }

// The edges in the order of their sources; those of one source keep their order.
struct BySource {
  std::vector<int64_t> indptr, destination, edge;

  explicit BySource(const glt_edges& e)
      : indptr(e.num_sources + 1), destination(e.indptr[e.num_rows]), edge(destination.size()) {
    const int64_t first = e.indptr[0], behind = e.indptr[e.num_rows];
    const Lists own = by_destination(e);
    for (int64_t p = first; p < behind; ++p) ++indptr[own.row_of(p)];
    int64_t total = 0;
    for (int64_t& count : indptr) {
      total += count;
      count = total;
    }
    for (int64_t i = e.num_rows - 1; i >= 0; --i)
      for (int64_t p = e.indptr[i + 1] - 1; p >= e.indptr[i]; --p) {
        const int64_t at = --indptr[own.row_of(p)];
        destination[at] = i;
        edge[at] = p;
      }
  }

  Lists lists() const { return {indptr.data(), destination.data(), edge.data()}; }
};

template <class T>
void aggregate(const glt_edges& e, int32_t kind, const void* x, const void* weights, void* out) {
  const auto* from = static_cast<const T*>(x);
  auto* to = static_cast<T*>(out);
  const Lists lists = by_destination(e);
  if (kind == GLT_AGGREGATE_MAX)
    run<Sum<T>>(ExtremeRows<T, false>{lists, e.width, from, to}, e.num_rows, e.width, e.threads);
  else if (kind == GLT_AGGREGATE_MIN)
    run<Sum<T>>(ExtremeRows<T, true>{lists, e.width, from, to}, e.num_rows, e.width, e.threads);
  else
    run<Sum<T>>(SumRows<T>{lists, e.width, e.heads, kind == GLT_AGGREGATE_MEAN, from, static_cast<const T*>(weights),
                           nullptr, to},
                e.num_rows, e.width, e.threads);
}

template <class T>
void aggregate_grad(const glt_edges& e, int32_t kind, const void* grad, const void* weights, const void* x,
                    const void* extremes, void* out) {
  const BySource by_source(e);
  const auto* from = static_cast<const T*>(grad);
  auto* to = static_cast<T*>(out);
  if (is_extreme(kind)) {
    std::vector<Sum<T>> share(e.num_rows * e.width);
    const auto *values = static_cast<const T*>(x), *found = static_cast<const T*>(extremes);
    run<Sum<T>>(ShareRows<T>{by_destination(e), e.width, values, found, from, share.data()}, e.num_rows, e.width, e.threads);
    run<Sum<T>>(ExtremeGradRows<T>{by_source.lists(), e.width, values, found, share.data(), to}, e.num_sources, e.width,
                e.threads);
    return;
  }
  std::vector<Sum<T>> scale;
  if (kind == GLT_AGGREGATE_MEAN) {
    scale.resize(e.num_rows);
    const MeanShares<Sum<T>> shares{e.indptr, scale.data()};
    for (int64_t i = 0; i < e.num_rows; ++i) shares(i);
  }
  run<Sum<T>>(SumRows<T>{by_source.lists(), e.width, e.heads, false, from, static_cast<const T*>(weights),
                         scale.empty() ? nullptr : scale.data(), to},
              e.num_sources, e.width, e.threads);
}

template <class T>
void weights_grad(const glt_edges& e, int32_t kind, const void* grad, const void* x, void* out) {
  auto* to = static_cast<T*>(out);
  std::fill(to, to + e.indptr[0] * e.heads, T{});
  std::fill(to + e.indptr[e.num_rows] * e.heads, to + e.num_edges * e.heads, T{});
  run<Sum<T>>(WeightRows<T>{by_destination(e), e.width, e.heads, kind == GLT_AGGREGATE_MEAN, static_cast<const T*>(x),
                            static_cast<const T*>(grad), to},
              e.num_rows, e.width, e.threads);
}

// Called before any loop: a bad id would read, or in a gradient write, outside of the rows. About 0.5 ms for a million edges.
int32_t check(const glt_edges& e, int32_t kind, bool weighted, int64_t* detail) {
  if (const int32_t status = check_call(e, kind, weighted, detail)) return status;
  for (int64_t i = 0; i < e.num_rows; ++i)
    if (!is_sound_row(e.indptr[i], e.indptr[i + 1], e.num_edges))
      return fail(detail, GLT_BAD_ROW, 0, i, e.indptr[i], e.indptr[i + 1]);
  for (int64_t p = e.indptr[0]; e.src && p < e.indptr[e.num_rows]; ++p)
    if (uint64_t(e.src[p]) >= uint64_t(e.num_sources)) return fail(detail, GLT_BAD_ID, p, e.src[p]);
  return GLT_OK;
}

}  // namespace
}  // namespace glt

int32_t glt_aggregate(const glt_edges* edges, int32_t kind, const void* x, const void* weights, void* out,
                      int64_t* detail) try {
  if (const int32_t status = glt::check(*edges, kind, weights, detail)) return status;
  glt::for_values(*edges, [&](auto v) { glt::aggregate<decltype(v)>(*edges, kind, x, weights, out); });
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_aggregate_grad(const glt_edges* edges, int32_t kind, const void* grad, const void* weights, const void* x,
                           const void* out, void* grad_x, int64_t* detail) try {
  if (const int32_t status = glt::check(*edges, kind, weights, detail)) return status;
  glt::for_values(*edges,
                  [&](auto v) { glt::aggregate_grad<decltype(v)>(*edges, kind, grad, weights, x, out, grad_x); });
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_aggregate_weights_grad(const glt_edges* edges, int32_t kind, const void* grad, const void* x,
                                   void* grad_weights, int64_t* detail) try {
  if (const int32_t status = glt::check(*edges, kind, true, detail)) return status;
  glt::for_values(*edges, [&](auto v) { glt::weights_grad<decltype(v)>(*edges, kind, grad, x, grad_weights); });
  return GLT_OK;
}
GLT_CATCH(detail)
