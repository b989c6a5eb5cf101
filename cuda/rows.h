// Sampling rows of one relation: the step that glt_sample_rows and glt_khop share.
#pragma once
#include "graph.h"
#include "pick.h"

namespace glt {

constexpr int kBlock = 128;  // rows resolved and prefetched together

struct RowRequest {
  const glt_graph* graph;
  int32_t relation, fanout;
  bool replace;
  uint64_t key;  // hop_key
};

// One row found: where its neighbours start, how many there are, how many are picked.
struct Row {
  const void* first;
  int64_t edge_row, degree, count;
  uint64_t stream;
};

// Resolves up to kBlock rows. gids must be in the range of the relation's destination type. uids may be null: then
// they are read from the graph. On failure fills detail and returns the status.
template <class Id>
int32_t find_rows(const RowRequest& q, const int64_t* gids, const int64_t* uids, int64_t n, Row* rows, int64_t* detail) {
  const glt_graph& g = *q.graph;
  const int64_t* ptr[kBlock];
  int32_t part[kBlock];
  int64_t uid[kBlock];
  const int32_t first_segment = g.dst_type[q.relation] * g.num_parts;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = segment_of(g, gids[i]);
    part[i] = q.relation * g.num_parts + s - first_segment;
    if (!g.indptr[part[i]]) return fail(detail, GLT_BAD_ID, i, gids[i]);
    const int64_t row = gids[i] - g.bounds[s];
    ptr[i] = g.indptr[part[i]] + row;
    prefetch(ptr[i]);
    uid[i] = uids ? uids[i] : int64_t(static_cast<const Id*>(g.user_ids[s])[row]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = ptr[i][0], end = ptr[i][1];
    if (!is_sound_row(begin, end, g.num_edges[part[i]]))
      return fail(detail, GLT_BAD_ROW, q.relation, gids[i], begin, end);
    Row& r = rows[i];
    r.first = static_cast<const Id*>(g.indices[part[i]]) + begin;
    r.edge_row = g.edge_base[part[i]] + begin;
    r.degree = end - begin;
    r.count = pick_count(r.degree, q.fanout, q.replace);
    r.stream = row_stream(q.key, uid[i]);
  }
  return GLT_OK;
}

// Writes the addresses of a row's picked neighbours and, unless null, their edge rows. `spare` holds fanout positions.
template <class Id>
void pick_row(const RowRequest& q, const Row& r, uint64_t* address, int64_t* edge_row, uint32_t* spare) {
  const Id* first = static_cast<const Id*>(r.first);
  if (r.count == r.degree && !(q.replace && q.fanout >= 0)) {
    for (int64_t k = 0; k < r.count; ++k) address[k] = uint64_t(first + k);
    if (edge_row)
      for (int64_t k = 0; k < r.count; ++k) edge_row[k] = r.edge_row + k;
    return;
  }
  if (q.replace) pick_repeated(r.stream, uint32_t(r.degree), uint32_t(r.count), spare);
  else pick_distinct(r.stream, uint32_t(r.degree), uint32_t(r.count), spare);
  for (int64_t k = 0; k < r.count; ++k) address[k] = uint64_t(first + spare[k]);
  if (edge_row)
    for (int64_t k = 0; k < r.count; ++k) edge_row[k] = r.edge_row + spare[k];
}

// Sampled rows in a buffer: per row its count, then so many entries. Entries are addresses first, then neighbours.
struct Slice {
  int64_t begin, end;  // rows of the frontier; end moves down to what the buffer held
  uint64_t* entries;
  int64_t* edge_rows;  // parallel to entries, or null
  int64_t cap, used = 0;
  int32_t status = GLT_OK;
  int64_t detail[4] = {0, 0, 0, 0};
};

template <class Id>
bool read_neighbors(const RowRequest& q, const TypeRange& range, uint64_t* at, const uint64_t* end, int64_t* detail) {
  constexpr int64_t kAhead = 32;
  while (at < end) {
    for (const uint64_t* stop = at + 1 + *at; ++at < stop;) {
      // Some entry ahead, now and then a count: fetching address 5 does no harm. Fetching each address as it is picked
      // was 1.4 times slower: the misses of a row come in a burst that the memory system cannot hold.
      if (at + kAhead < end) prefetch(reinterpret_cast<const void*>(at[kAhead]));
      const int64_t gid = int64_t(*reinterpret_cast<const Id*>(*at));
      if (!range.has(gid)) {
        fail(detail, GLT_BAD_ROW, q.relation, -1, gid);
        return false;
      }
      *at = uint64_t(gid);
    }
  }
  return true;
}

// Samples the rows of one slice. gids, uids: of the whole frontier (uids may be null). spare: fanout positions.
template <class Id>
void sample_slice(const RowRequest& q, const int64_t* gids, const int64_t* uids, uint32_t* spare, Slice& s) {
  const TypeRange range(*q.graph, q.graph->src_type[q.relation]);
  Row rows[kBlock];
  for (int64_t i = s.begin; i < s.end; i += kBlock) {
    const int64_t n = std::min<int64_t>(kBlock, s.end - i), start = s.used;
    s.status = find_rows<Id>(q, gids + i, uids ? uids + i : nullptr, n, rows, s.detail);
    if (s.status) return;
    for (int64_t k = 0; k < n; ++k) {
      const Row& r = rows[k];
      if (s.used + 1 + r.count > s.cap) {
        s.end = i + k;
        break;
      }
      s.entries[s.used++] = uint64_t(r.count);
      pick_row<Id>(q, r, s.entries + s.used, s.edge_rows ? s.edge_rows + s.used : nullptr, spare);
      s.used += r.count;
    }
    if (!read_neighbors<Id>(q, range, s.entries + start, s.entries + s.used, s.detail)) s.status = GLT_BAD_ROW;
    if (s.status) return;
    if (s.end == s.begin) {
      fail(s.detail, s.status = GLT_GROW, 1, 0, 2 * (rows[0].count + 1));
      return;
    }
  }
}

}  // namespace glt
