// One hop of one relation, for callers that hold the loop themselves (rows of several owners).
#include <glt/api.h>

#include <vector>

#include "rows.h"
#include "threads.h"

namespace glt {
namespace {

template <class Id>
int32_t count_rows(const RowRequest& q, const int64_t* gids, int64_t n, int64_t* counts, int64_t* detail) {
  const TypeRange range(*q.graph, q.graph->dst_type[q.relation]);
  const std::vector<int64_t> no_ids(kBlock, 0);  // counting needs no draws
  Row rows[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = std::min<int64_t>(kBlock, n - i);
    for (int64_t k = 0; k < m; ++k)
      if (!range.has(gids[i + k])) return fail(detail, GLT_BAD_ID, i + k, gids[i + k]);
    const int32_t status = find_rows<Id>(q, gids + i, no_ids.data(), m, rows, detail);
    if (status) return status;
    for (int64_t k = 0; k < m; ++k) counts[i + k] = rows[k].count;
  }
  return GLT_OK;
}

template <class Id>
int32_t sample_rows(const RowRequest& q, const int64_t* gids, int64_t n, int32_t threads, int64_t* counts,
                    int64_t* neighbors, int64_t* edge_rows, int64_t cap, int64_t* detail) {
  int32_t status = count_rows<Id>(q, gids, n, counts, detail);
  if (status) return status;
  std::vector<int64_t> offset(n + 1, 0);
  int64_t most = 0;
  for (int64_t i = 0; i < n; ++i) offset[i + 1] = offset[i] + counts[i], most = std::max(most, counts[i]);
  if (offset[n] > cap) return fail(detail, GLT_GROW, 3, q.relation, offset[n]);
  std::vector<Slice> failed(std::max(1, threads));
  parallel(n, threads, 1024, [&](int64_t begin, int64_t end, int index) {
    std::vector<uint64_t> entries(kBlock * (most + 1));
    std::vector<int64_t> rows(edge_rows ? entries.size() : 0);
    std::vector<uint32_t> spare(most + 1);
    for (int64_t i = begin; i < end; i += kBlock) {
      Slice s{i, std::min(end, i + kBlock), entries.data(), edge_rows ? rows.data() : nullptr, int64_t(entries.size())};
      sample_slice<Id>(q, gids, nullptr, spare.data(), s);
      if (s.status) {
        failed[index] = s;
        return;
      }
      const uint64_t* at = entries.data();
      for (int64_t k = s.begin; k < s.end; ++k, at += 1 + *at)
        for (int64_t j = 0; j < counts[k]; ++j) {
          neighbors[offset[k] + j] = int64_t(at[1 + j]);
          if (edge_rows) edge_rows[offset[k] + j] = rows[at + 1 + j - entries.data()];
        }
    }
  });
  for (const Slice& s : failed)
    if (s.status) return fail(detail, s.status, s.detail[0], s.detail[1], s.detail[2], s.detail[3]);
  return GLT_OK;
}

}  // namespace
}  // namespace glt

int32_t glt_sample_rows(const glt_graph* graph, int32_t relation, const int64_t* gids, int64_t num_rows, int32_t fanout,
                        uint64_t batch_key, int32_t hop, int32_t replace, int32_t threads, int64_t* counts,
                        int64_t* neighbors, int64_t* edge_rows, int64_t cap, int64_t* detail) {
  if (relation < 0 || relation >= graph->num_relations) return glt::fail(detail, GLT_BAD_ARG, relation);
  const glt::RowRequest q{graph, relation, fanout, replace != 0, glt::hop_key(batch_key, hop, graph->key[relation])};
  auto run = graph->id_bytes == 4 ? glt::sample_rows<int32_t> : glt::sample_rows<int64_t>;
  return run(q, gids, num_rows, threads, counts, neighbors, edge_rows, cap, detail);
}
