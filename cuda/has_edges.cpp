// Tells whether edges are stored. A row is in the order of user ids, and the user ids of remote sources are not here, so a row is
// scanned from its beginning for the gid of the source.
#include <glt/api.h>

#include <algorithm>
#include <vector>

#include "guard.h"
#include "rows.h"
#include "threads.h"

namespace glt {
namespace {

constexpr int64_t kAtOnce = 64;  // entries compared without a branch between them, so with vector instructions

// sums: prefix sums of the weights, or null. An entry of weight 0 does not count as an edge: it is never in a batch.
template <class Id>
bool contains(const Id* row, int64_t degree, Id id, const int32_t* sums) {
  for (int64_t i = 0; i < degree; i += kAtOnce) {
    const int64_t end = std::min(degree, i + kAtOnce);
    Id hit = 0;
    for (int64_t k = i; k < end; ++k) hit |= Id(row[k] == id);
    if (hit && !sums) return true;
    for (int64_t k = i; hit && k < end; ++k)
      if (row[k] == id && sums[k] != (k ? sums[k - 1] : 0)) return true;
  }
  return false;
}

// Prefetches the entries that the first comparison of a row reads.
template <class Id>
void prefetch_row(const Row& r) {
  constexpr int64_t kLine = 64;
  const char* first = static_cast<const char*>(r.first);
  const int64_t bytes = std::min(r.degree, kAtOnce) * int64_t(sizeof(Id));
  for (int64_t at = 0; at < bytes; at += kLine) prefetch(first + at);
}

struct Pairs {
  const int64_t *dst, *src;
  uint8_t* found;
};

template <class Id>
int32_t find_pairs(const RowRequest& q, const Pairs& pairs, int64_t begin, int64_t end, int64_t* detail) {
  const TypeRange range(*q.graph, q.graph->dst_type[q.edge_type]);
  const std::vector<int64_t> no_ids(kBlock, 0);  // nothing is drawn
  const int64_t shift = source_shift(*q.graph, q.edge_type);
  Row rows[kBlock];
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = std::min<int64_t>(kBlock, end - i);
    for (int64_t k = i; k < i + n; ++k)
      if (!range.has(pairs.dst[k])) return fail(detail, GLT_BAD_ID, k, pairs.dst[k]);
    if (const int32_t status = find_rows<Id>(q, pairs.dst + i, no_ids.data(), nullptr, n, rows, detail)) {
      if (status == GLT_BAD_ID) detail[0] += i;
      return status;
    }
    for (int64_t k = 0; k < n; ++k) prefetch_row<Id>(rows[k]);
    for (int64_t k = 0; k < n; ++k)
      pairs.found[i + k] =
          contains(static_cast<const Id*>(rows[k].first), rows[k].degree, Id(pairs.src[i + k] - shift), rows[k].sums);
  }
  return GLT_OK;
}

struct Failure {
  int32_t status = GLT_OK;
  int64_t detail[4] = {0, 0, 0, 0};
};

template <class Id>
int32_t has_edges(const RowRequest& q, const Pairs& pairs, int64_t n, int32_t threads, int64_t* detail) {
  std::vector<Failure> failed(std::max(1, threads));
  parallel(n, threads, 1024, [&](int64_t begin, int64_t end, int index) {
    failed[index].status = find_pairs<Id>(q, pairs, begin, end, failed[index].detail);
  });
  for (const Failure& f : failed)
    if (f.status) return fail(detail, f.status, f.detail[0], f.detail[1], f.detail[2], f.detail[3]);
  return GLT_OK;
}

}  // namespace
}  // namespace glt

int32_t glt_has_edges(const glt_graph* graph, int32_t edge_type, const int64_t* dst, const int64_t* src, int64_t n,
                      int32_t threads, uint8_t* found, int64_t* detail) try {
  if (edge_type < 0 || edge_type >= graph->num_edge_types) return glt::fail(detail, GLT_BAD_ARG, edge_type);
  const glt::TypeRange sources(*graph, graph->src_type[edge_type]);
  for (int64_t i = 0; i < n; ++i)  // as narrow ids, others could equal a node
    if (!sources.has(src[i])) return glt::fail(detail, GLT_BAD_ID, i, src[i]);
  const glt::RowRequest q{graph, edge_type, -1, false, 0};
  const glt::Pairs pairs{dst, src, found};
  return (graph->id_bytes == 4 ? glt::has_edges<int32_t> : glt::has_edges<int64_t>)(q, pairs, n, threads, detail);
}
GLT_CATCH(detail)
