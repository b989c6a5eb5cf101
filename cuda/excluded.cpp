// Finds the positions in rows of the neighbours that are excluded from sampling. By a scan as in has_edges.cpp: rows are in the
// order of user ids, which are not here for remote sources.
#include <glt/api.h>

#include <algorithm>

#include "guard.h"
#include "rows.h"

namespace glt {
namespace {

constexpr int64_t kAtOnce = 64;  // entries compared without a branch between them, so with vector instructions

// Appends the positions of all copies of id.
template <class Id>
void find_all(const Id* row, int64_t degree, Id id, std::vector<uint32_t>& positions) {
  for (int64_t i = 0; i < degree; i += kAtOnce) {
    const int64_t end = std::min(degree, i + kAtOnce);
    Id hit = 0;
    for (int64_t k = i; k < end; ++k) hit |= Id(row[k] == id);
    if (!hit) continue;
    for (int64_t k = i; k < end; ++k)
      if (row[k] == id) positions.push_back(uint32_t(k));
  }
}

constexpr int64_t kFew = 16;  // ids of one row that are looked for one after the other

// Appends the positions of all entries that are among n ids, which ascend, in one pass: a request may name many edges of one node.
// shift: source_shift.
template <class Id>
void find_among(const Id* row, int64_t degree, const int64_t* ids, int64_t n, int64_t shift, std::vector<uint32_t>& positions) {
  for (int64_t k = 0; k < degree; ++k)
    if (std::binary_search(ids, ids + n, int64_t(row[k]) + shift)) positions.push_back(uint32_t(k));
}

struct Found {
  int64_t *gids, *begin;
  std::vector<uint32_t> positions;
  int64_t num_rows = 0;

  // All pairs of a row are entered.
  void close(int64_t gid) {
    const int64_t first = begin[num_rows];
    if (int64_t(positions.size()) == first) return;
    std::sort(positions.begin() + first, positions.end());
    gids[num_rows++] = gid;
    begin[num_rows] = int64_t(positions.size());
  }
};

template <class Id>
int32_t find_excluded(const RowRequest& q, const int64_t* dst, const int64_t* src, int64_t n, Found& found, int64_t* detail) {
  const std::vector<int64_t> no_ids(kBlock, 0);  // nothing is drawn
  const int64_t shift = source_shift(*q.graph, q.edge_type);
  Row rows[kBlock];
  int64_t done = 0;  // pairs
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = std::min<int64_t>(kBlock, n - i);
    if (const int32_t status = find_rows<Id>(q, dst + i, no_ids.data(), nullptr, m, rows, detail)) {
      if (status == GLT_BAD_ID) detail[0] += i;
      return status;
    }
    for (int64_t k = 0; k < m; ++k) prefetch(rows[k].first);
    for (int64_t k = 0; k < m; ++k) {
      if (i + k < done) continue;
      const int64_t gid = dst[i + k];
      const Id* row = static_cast<const Id*>(rows[k].first);
      for (done = i + k; done < n && dst[done] == gid;) ++done;
      if (const int64_t count = done - (i + k); count > kFew) {
        find_among(row, rows[k].degree, src + i + k, count, shift, found.positions);
      } else {
        for (int64_t j = i + k; j < done; ++j) find_all(row, rows[k].degree, Id(src[j] - shift), found.positions);
      }
      found.close(gid);
    }
  }
  return GLT_OK;
}

}  // namespace
}  // namespace glt

int32_t glt_find_excluded(const glt_graph* graph, int32_t edge_type, const int64_t* dst, const int64_t* src, int64_t n,
                          int64_t* gids, int64_t* begin, uint32_t* positions, int64_t cap, int64_t* num_rows,
                          int64_t* detail) try {
  using namespace glt;
  if (edge_type < 0 || edge_type >= graph->num_edge_types) return fail(detail, GLT_BAD_ARG, edge_type);
  const TypeRange sources(*graph, graph->src_type[edge_type]), destinations(*graph, graph->dst_type[edge_type]);
  for (int64_t i = 0; i < n; ++i) {  // as narrow ids, others could equal a node
    if (!sources.has(src[i])) return fail(detail, GLT_BAD_ID, i, src[i]);
    if (!destinations.has(dst[i])) return fail(detail, GLT_BAD_ID, i, dst[i]);
    const bool ascends = !i || dst[i - 1] < dst[i] || (dst[i - 1] == dst[i] && src[i - 1] < src[i]);
    if (!ascends) return fail(detail, GLT_BAD_ARG, i, dst[i], src[i]);
  }
  Found found{gids, begin, {}};
  begin[0] = 0;
  const RowRequest q{graph, edge_type, -1, false, 0};
  const int32_t status = (graph->id_bytes == 4 ? find_excluded<int32_t> : find_excluded<int64_t>)(q, dst, src, n, found, detail);
  if (status) return status;
  const int64_t total = int64_t(found.positions.size());
  if (total > cap) return fail(detail, GLT_GROW, 0, 0, total);
  std::copy(found.positions.begin(), found.positions.end(), positions);
  *num_rows = found.num_rows;
  return GLT_OK;
}
GLT_CATCH(detail)
