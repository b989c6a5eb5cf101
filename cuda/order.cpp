// Column pointers of edges that are sorted by destination, and a stable counting sort of them by source.
#include <glt/order.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "graph.h"
#include "guard.h"
#include "threads.h"

namespace glt {
namespace {

constexpr int64_t kGrain = 1 << 16;  // edges that are worth a thread

// One slice after another is placed behind the slices before it, so the order does not depend on their number.
class BySource {
 public:
  BySource(const int32_t* src, int64_t n, int64_t nodes, int32_t threads)
      : src_(src), n_(n), nodes_(nodes), slices_(std::max<int64_t>(1, std::min<int64_t>(threads, n / kGrain))) {}

  // The position of a source outside of [0, nodes), or n.
  int64_t count(int64_t* rowptr) {
    if (slices_ > 1) next_.assign(slices_ * nodes_, 0);
    std::fill(rowptr, rowptr + nodes_ + 1, 0);
    std::atomic<int64_t> bad{n_};
    each_slice([&](int64_t begin, int64_t end, int64_t slice) {
      for (int64_t e = begin; e < end; ++e) {
        if (uint64_t(src_[e]) >= uint64_t(nodes_)) {
          for (int64_t now = bad; e < now && !bad.compare_exchange_weak(now, e);) {
          }
          return;
        }
        if (slices_ > 1) ++next_[slice * nodes_ + src_[e]];
        else ++rowptr[src_[e] + 1];
      }
    });
    return bad;
  }

  // Turns counts into the positions at which the edges of each source begin; with several slices, those of each slice.
  void scan(int64_t* rowptr) {
    if (slices_ == 1) {
      for (int64_t s = 0; s < nodes_; ++s) rowptr[s + 1] += rowptr[s];
      return;
    }
    int64_t total = 0;
    for (int64_t s = 0; s < nodes_; ++s) {
      rowptr[s] = total;
      for (int64_t t = 0; t < slices_; ++t) {
        const int64_t counted = next_[t * nodes_ + s];
        next_[t * nodes_ + s] = int32_t(total);
        total += counted;
      }
    }
    rowptr[nodes_] = total;
  }

  void place(const int32_t* dst, int64_t* rowptr, int64_t* col, int64_t* perm) {
    each_slice([&](int64_t begin, int64_t end, int64_t slice) {
      for (int64_t e = begin; e < end; ++e) {
        const int64_t at = slices_ > 1 ? next_[slice * nodes_ + src_[e]]++ : rowptr[src_[e]]++;
        col[at] = dst[e];
        perm[at] = e;
      }
    });
    if (slices_ == 1) {  // each pointer has moved on to where the next source begins
      std::copy_backward(rowptr, rowptr + nodes_, rowptr + nodes_ + 1);
      rowptr[0] = 0;
    }
  }

 private:
  template <class Body>
  void each_slice(const Body& body) {
    parallel(slices_, int32_t(slices_), 1, [&](int64_t first, int64_t last, int) {
      for (int64_t t = first; t < last; ++t) body(n_ * t / slices_, n_ * (t + 1) / slices_, t);
    });
  }

  const int32_t* src_;
  int64_t n_, nodes_, slices_;
  std::vector<int32_t> next_;  // [slices, nodes], of several slices
};

}  // namespace
}  // namespace glt

int32_t glt_colptr(const int32_t* dst, int64_t n, int64_t nodes, int64_t* colptr, int64_t* detail) try {
  int64_t node = 0;  // the edges into it, or into later ones, begin at e or after
  colptr[0] = 0;
  for (int64_t e = 0; e < n; ++e) {
    if (dst[e] < node || dst[e] >= nodes) return glt::fail(detail, GLT_BAD_ARG, e, dst[e]);
    while (node < dst[e]) colptr[++node] = e;
  }
  while (node < nodes) colptr[++node] = n;
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_by_source(const int32_t* src, const int32_t* dst, int64_t n, int64_t nodes, int32_t threads, int64_t* rowptr,
                      int64_t* col, int64_t* perm, int64_t* detail) try {
  if (n > INT32_MAX) return glt::fail(detail, GLT_BAD_ARG, n);
  glt::BySource sort(src, n, nodes, threads);
  const int64_t bad = sort.count(rowptr);
  if (bad < n) return glt::fail(detail, GLT_BAD_ARG, bad, src[bad]);
  sort.scan(rowptr);
  sort.place(dst, rowptr, col, perm);
  return GLT_OK;
}
GLT_CATCH(detail)
