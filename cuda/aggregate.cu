// Aggregation over sorted edges on a device: by the loops of the CPU, a thread for each value of the result, which goes through
// the edges in their order. So no thread writes what another does, and all bits are those of the CPU. Neighbouring threads read
// neighbouring values of the same rows.
#include <glt/cuda.h>

#include <algorithm>

#include "aggregate_bodies.h"
#include "aggregate_check.h"
#include "device.cuh"
#include "guard.h"
#include "report.h"

namespace glt {
namespace {

// Reports invalid lists and entries, before anything is read through them. Thread t checks list t and entry t.
struct CheckLists {
  Lists lists;
  int64_t num_lists, num_rows, num_entries;
  int64_t* error;

  GLT_DEVICE void operator()(int64_t t) const {
    if (t < num_lists && !is_sound_row(lists.indptr[t], lists.indptr[t + 1], num_entries))
      report(error, GLT_BAD_ROW, 0, t, lists.indptr[t], lists.indptr[t + 1]);
    if (t >= num_entries || t < lists.indptr[0] || t >= lists.indptr[num_lists]) return;
    if (lists.row && uint64_t(lists.row[t]) >= uint64_t(num_rows)) report(error, GLT_BAD_ID, t, lists.row[t]);
    if (lists.edge && uint64_t(lists.edge[t]) >= uint64_t(num_entries)) report(error, GLT_BAD_ID, t, lists.edge[t]);
  }
};

template <class T, class Body>
struct EachValue {
  Body body;
  const int64_t* error;

  GLT_DEVICE void operator()(int64_t t) const {
    if (*error) return;
    const int64_t i = t / body.width;
    Sum<T> value[1];
    body.column(t % body.width)(i, i + 1, value);
  }
};

// Products of rows as `WeightRows` makes them, by lanes side by side for each edge and head.
template <class T>
struct EdgeProducts {
  static constexpr int kWords = int(kProductLanes * sizeof(Sum<T>) / sizeof(uint32_t));

  glt_edges edges;
  const int64_t* dst;
  bool mean;
  const T *x, *grad;
  T* out;
  const int64_t* error;

  struct Item {
    int64_t at, edge, row;  // row: of its destination, or -1
    Sum<T>* lane;
  };

  GLT_DEVICE Item open(int64_t at, uint32_t* memory) const {
    const int64_t edge = at / edges.heads, row = dst[edge];
    const bool is_edge = uint64_t(row) < uint64_t(edges.num_rows) && edge >= edges.indptr[row] && edge < edges.indptr[row + 1];
    return {at, edge, !*error && is_edge ? row : -1, reinterpret_cast<Sum<T>*>(memory)};
  }
  GLT_DEVICE void first(const Item& item, uint32_t lane, uint32_t lanes) const {
    if (item.row < 0) return;
    const int64_t part = edges.width / edges.heads, begin = item.at % edges.heads * part;
    const T* const a = x + (edges.src ? edges.src[item.edge] : item.edge) * edges.width + begin;
    const T* const b = grad + item.row * edges.width + begin;
    Sum<T> sum = 0;
    for (int64_t k = lane; k < part; k += lanes) sum += times(value_of(a[k]), value_of(b[k]));
    item.lane[lane] = sum;
  }
  GLT_DEVICE void second(const Item& item, uint32_t lane, uint32_t) const {
    if (lane || *error) return;
    if (item.row < 0) return put(out + item.at, Sum<T>(0));
    const Sum<T> count = mean ? Sum<T>(edges.indptr[item.row + 1] - edges.indptr[item.row]) : Sum<T>(1);
    put(out + item.at, sum_of_lanes(item.lane) / count);
  }
  GLT_DEVICE void third(const Item&, uint32_t, uint32_t) const {}
};

// The kernels of one op, launched in order; none after one that has failed.
struct Queue {
  int64_t *error, *detail;
  void* stream;
  int32_t status = GLT_OK;

  void check(const Lists& lists, int64_t num_lists, int64_t num_rows, int64_t num_entries) {
    const CheckLists body{lists, num_lists, num_rows, num_entries, error};
    if (!status) status = for_each(std::max(num_lists, num_entries), body, stream, detail);
  }

  template <class T, class Body>
  void each_value(const Body& body, int64_t rows) {
    if (!status) status = for_each(rows * body.width, EachValue<T, Body>{body, error}, stream, detail);
  }

  template <class S>
  void mean_shares(const glt_edges& e, S* out) {
    if (!status) status = for_each(e.num_rows, MeanShares<S>{e.indptr, out}, stream, detail);
  }
};

Lists by_destination(const glt_edges& e) { return {e.indptr, e.src, nullptr}; }

template <class T>
void aggregate(Queue& queue, const glt_edges& e, int32_t kind, const void* x, const void* weights, void* out) {
  const auto* from = static_cast<const T*>(x);
  auto* to = static_cast<T*>(out);
  const Lists lists = by_destination(e);
  if (kind == GLT_AGGREGATE_MAX)
    queue.each_value<T>(ExtremeRows<T, false>{lists, e.width, from, to}, e.num_rows);
  else if (kind == GLT_AGGREGATE_MIN)
    queue.each_value<T>(ExtremeRows<T, true>{lists, e.width, from, to}, e.num_rows);
  else
    queue.each_value<T>(SumRows<T>{lists, e.width, e.heads, kind == GLT_AGGREGATE_MEAN, from,
                                   static_cast<const T*>(weights), nullptr, to},
                        e.num_rows);
}

template <class T>
void aggregate_grad(Queue& queue, const glt_edges& e, const Lists& by_source, int32_t kind, const void* grad,
                    const void* weights, const void* x, const void* extremes, void* workspace, void* out) {
  const auto* from = static_cast<const T*>(grad);
  auto* to = static_cast<T*>(out);
  auto* share = static_cast<Sum<T>*>(workspace);
  if (is_extreme(kind)) {
    const auto *values = static_cast<const T*>(x), *found = static_cast<const T*>(extremes);
    queue.each_value<T>(ShareRows<T>{by_destination(e), e.width, values, found, from, share}, e.num_rows);
    queue.each_value<T>(ExtremeGradRows<T>{by_source, e.width, values, found, share, to}, e.num_sources);
    return;
  }
  const bool mean = kind == GLT_AGGREGATE_MEAN;
  if (mean) queue.mean_shares(e, share);
  queue.each_value<T>(SumRows<T>{by_source, e.width, e.heads, false, from, static_cast<const T*>(weights),
                                 mean ? share : nullptr, to},
                      e.num_sources);
}

}  // namespace
}  // namespace glt

int32_t glt_cuda_aggregate(const glt_edges* edges, int32_t kind, const void* x, const void* weights, void* out,
                           int64_t* error, int64_t* detail, void* stream) try {
  const glt_edges& e = *edges;
  glt::Queue queue{error, detail, stream, glt::check_call(e, kind, weights, detail)};
  queue.check(glt::by_destination(e), e.num_rows, e.num_sources, e.num_edges);
  glt::for_values(e, [&](auto v) { glt::aggregate<decltype(v)>(queue, e, kind, x, weights, out); });
  return queue.status;
}
GLT_CATCH(detail)

int32_t glt_cuda_aggregate_grad(const glt_edges* edges, const int64_t* indptr, const int64_t* dst, const int64_t* edge,
                                int32_t kind, const void* grad, const void* weights, const void* x, const void* out,
                                void* workspace, void* grad_x, int64_t* error, int64_t* detail, void* stream) try {
  const glt_edges& e = *edges;
  const glt::Lists by_source{indptr, dst, edge};
  glt::Queue queue{error, detail, stream, glt::check_call(e, kind, weights, detail)};
  queue.check(glt::by_destination(e), e.num_rows, e.num_sources, e.num_edges);
  queue.check(by_source, e.num_sources, e.num_rows, e.num_edges);
  glt::for_values(e, [&](auto v) {
    glt::aggregate_grad<decltype(v)>(queue, e, by_source, kind, grad, weights, x, out, workspace, grad_x);
  });
  return queue.status;
}
GLT_CATCH(detail)

int32_t glt_cuda_aggregate_weights_grad(const glt_edges* edges, const int64_t* dst, int32_t kind, const void* grad,
                                        const void* x, void* grad_weights, int64_t* error, int64_t* detail,
                                        void* stream) try {
  const glt_edges& e = *edges;
  glt::Queue queue{error, detail, stream, glt::check_call(e, kind, true, detail)};
  queue.check(glt::by_destination(e), e.num_rows, e.num_sources, e.num_edges);
  glt::for_values(e, [&](auto v) {
    using T = decltype(v);
    const glt::EdgeProducts<T> body{e, dst, kind == GLT_AGGREGATE_MEAN, static_cast<const T*>(x),
                                    static_cast<const T*>(grad), static_cast<T*>(grad_weights), error};
    if (!queue.status)
      queue.status = glt::for_each_lanes<glt::kProductLanes>(e.num_edges * e.heads, body, stream, detail);
  });
  return queue.status;
}
GLT_CATCH(detail)
