// Sampling rows of one edge type: the steps that glt_pick_rows and glt_khop share.
#pragma once
#include <vector>

#include "excluded.h"
#include "graph.h"
#include "pick.h"
#include "weighted.h"

namespace glt {

constexpr int kBlock = 128;  // rows resolved and prefetched together

struct RowRequest {
  const glt_graph* graph;
  int32_t edge_type, fanout;
  bool replace;
  uint64_t key;  // hop_key
  const void* const* edge_ids = nullptr;  // [R * P], where edge ids are wanted
  int32_t edge_id_bytes = 0;
  const ExcludedRows* excluded = nullptr;  // where something is
};

// One row found: where its neighbours and their edge ids start, how many there are (but for excluded ones), how many are picked.
struct Row {
  const void* first;
  const char* first_edge;
  int64_t edge_row, degree, count;
  uint64_t stream;
  ExcludedRow excluded;
  const int32_t* sums;  // null: all entries weigh the same. Else `degree` counts the excluded entries, too

  WeightedRow weighted() const { return {sums, degree, excluded}; }
};

// What a search among the sums of a row reads: of a short one all of it, of a long one where every search begins.
inline void prefetch_sums(const int32_t* sums, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(int32_t), kShort = 8 * kLine;
  const int64_t step = n <= kShort ? kLine : n / 8;
  for (int64_t p = 0; p < n; p += step) prefetch(sums + p);
  if (n) prefetch(sums + n - 1);
}

// How many entries of rows are picked by weight, whose sums find_rows has prefetched.
inline void count_weighted(const RowRequest& q, int64_t n, Row* rows) {
  for (int64_t i = 0; i < n; ++i)
    if (rows[i].sums) rows[i].count = rows[i].weighted().count(q.fanout, q.replace);
}

// Resolves up to kBlock rows. gids must be in the range of the edge type's destination type. uids may be null: then
// they are read from the graph. On failure fills detail and returns the status.
template <class Id>
int32_t find_rows(const RowRequest& q, const int64_t* gids, const int64_t* uids, int64_t n, Row* rows, int64_t* detail) {
  const glt_graph& g = *q.graph;
  const int32_t* const* sums = g.sums;
  const int64_t* ptr[kBlock];
  int32_t part[kBlock];
  int64_t uid[kBlock];
  const int32_t first_segment = g.dst_type[q.edge_type] * g.num_parts;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = segment_of(g, gids[i]);
    part[i] = q.edge_type * g.num_parts + s - first_segment;
    if (!g.indptr[part[i]]) return fail(detail, GLT_BAD_ID, i, gids[i]);
    const int64_t row = gids[i] - g.bounds[s];
    ptr[i] = g.indptr[part[i]] + row;
    prefetch(ptr[i]);
    uid[i] = uids ? uids[i] : int64_t(static_cast<const Id*>(g.user_ids[s])[row]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = ptr[i][0], end = ptr[i][1];
    if (!is_sound_row(begin, end, g.num_edges[part[i]]))
      return fail(detail, GLT_BAD_ROW, q.edge_type, gids[i], begin, end);
    Row& r = rows[i];
    r.first = static_cast<const Id*>(g.indices[part[i]]) + begin;
    r.first_edge = q.edge_ids ? static_cast<const char*>(q.edge_ids[part[i]]) + begin * q.edge_id_bytes : nullptr;
    r.edge_row = g.edge_base[part[i]] + begin;
    r.excluded = q.excluded ? q.excluded->of(gids[i]) : ExcludedRow{nullptr, 0};
    r.stream = row_stream(q.key, uid[i]);
    r.sums = sums && sums[part[i]] ? sums[part[i]] + begin : nullptr;
    if (r.sums) {
      r.degree = end - begin;
      prefetch_sums(r.sums, r.degree);
      continue;
    }
    r.degree = left_of(end - begin, r.excluded);
    r.count = pick_count(r.degree, q.fanout, q.replace);
  }
  if (sums) count_weighted(q, n, rows);
  return GLT_OK;
}

// Where picks go. edge_ids and edge_rows may be null. What is read from memory is an address first, see read_values.
struct Picks {
  uint64_t* neighbors;
  uint64_t* edge_ids;
  int64_t* edge_rows;

  Picks operator+(int64_t n) const {
    return {neighbors + n, edge_ids ? edge_ids + n : nullptr, edge_rows ? edge_rows + n : nullptr};
  }
};

// n picks, ascending, among the entries that are left of a row: where they lie in the whole row.
inline void move_past(const ExcludedRow& excluded, uint32_t* picks, int64_t n) {
  int64_t k = 0;
  for (int64_t i = 0; i < n; ++i) {
    while (k < excluded.n && int64_t(excluded.positions[k]) - k <= int64_t(picks[i])) ++k;
    picks[i] += uint32_t(k);
  }
}

constexpr int64_t kFewPicks = 64;

// pick_weighted for few picks of a row without excluded entries, in half of the time: what is taken lies in arrays that are
// compared, and moved, without a branch. Coordinates are those of the range that is left.
inline void pick_few_weighted(const WeightedRow& row, uint64_t stream, uint32_t count, uint32_t* out) {
  uint32_t begin[kFewPicks], taken[kFewPicks + 1] = {0};  // where each taken entry would begin; weight of those before it
  uint32_t left = row.total();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t mass = left ? draw(stream, i, left) : 0;
    uint32_t place = 0;
    for (uint32_t k = 0; k < i; ++k) place += begin[k] <= mass;
    const uint32_t pick = uint32_t(row.find(mass + taken[place]));
    const uint32_t low = row.before(pick), weight = row.through(pick) - low;
    for (uint32_t k = i; k > place; --k) {
      out[k] = out[k - 1];
      begin[k] = begin[k - 1] - weight;
      taken[k + 1] = taken[k] + weight;
    }
    out[place] = pick;
    begin[place] = low - taken[place];
    taken[place + 1] = taken[place] + weight;
    left -= weight;
  }
}

// The positions of a row that are picked by weight, ascending, all of them.
inline void draw_weighted(const RowRequest& q, const Row& r, uint32_t* out) {
  const WeightedRow row = r.weighted();
  if (!q.replace && r.count <= kFewPicks && !row.excluded.n) return pick_few_weighted(row, r.stream, uint32_t(r.count), out);
  if (!q.replace) return pick_weighted(row, r.stream, uint32_t(r.count), out);
  const uint32_t left = row.left();
  for (int64_t i = 0; i < r.count; ++i) out[i] = pick_repeatedly(row, r.stream, uint32_t(i), left);
  std::sort(out, out + r.count);
}

// Writes the picks [begin, end) of a row. `spare` grows to the positions of the longest row that is drawn from.
template <class Id>
void pick_row(const RowRequest& q, const Row& r, int64_t begin, int64_t end, const Picks& out,
              std::vector<uint32_t>& spare) {
  const auto write = [&](const auto& position) {
    const Id* first = static_cast<const Id*>(r.first);
    for (int64_t k = begin; k < end; ++k) out.neighbors[k - begin] = uint64_t(first + position(k));
    if (out.edge_ids)
      for (int64_t k = begin; k < end; ++k) out.edge_ids[k - begin] = uint64_t(r.first_edge + position(k) * q.edge_id_bytes);
    if (out.edge_rows)
      for (int64_t k = begin; k < end; ++k) out.edge_rows[k - begin] = r.edge_row + position(k);
  };
  if (r.sums && r.weighted().takes_all(r.count, q.fanout, q.replace)) {  // without memory for a row of any length
    r.weighted().each_positive(end, [&](int64_t position, int64_t rank) {
      if (rank < begin) return;
      const int64_t k = rank - begin;
      out.neighbors[k] = uint64_t(static_cast<const Id*>(r.first) + position);
      if (out.edge_ids) out.edge_ids[k] = uint64_t(r.first_edge + position * q.edge_id_bytes);
      if (out.edge_rows) out.edge_rows[k] = r.edge_row + position;
    });
    return;
  }
  if (!r.sums && r.count == r.degree && !(q.replace && q.fanout >= 0)) {
    if (!r.excluded.n) return write([](int64_t k) { return k; });
    return write([&](int64_t k) { return r.excluded.past(k); });  // from anywhere in a row of any length, without memory for it
  }
  if (int64_t(spare.size()) < r.count) spare.resize(r.count);
  if (r.sums) {
    draw_weighted(q, r, spare.data());
    return write([&](int64_t k) { return int64_t(spare[k]); });
  }
  if (q.replace) pick_repeated(r.stream, uint32_t(r.degree), uint32_t(r.count), spare.data());
  else pick_distinct(r.stream, uint32_t(r.degree), uint32_t(r.count), spare.data());
  if (r.excluded.n) move_past(r.excluded, spare.data(), r.count);
  write([&](int64_t k) { return int64_t(spare[k]); });
}

// Puts what lies at n addresses in their place. Fetching each address as it is picked was 1.4 times slower: the misses of
// a row come in a burst that the memory system cannot hold.
template <class Value>
void read_values(uint64_t* at, int64_t n) {
  constexpr int64_t kAhead = 32;
  for (int64_t i = 0; i < std::min(kAhead, n); ++i) prefetch(reinterpret_cast<const void*>(at[i]));
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch(reinterpret_cast<const void*>(at[i + kAhead]));
    at[i] = uint64_t(int64_t(*reinterpret_cast<const Value*>(at[i])));
  }
}

// Reads what n picks point to. False, with detail, for a neighbour that is no node.
template <class Id>
bool read_picks(const RowRequest& q, const Picks& picks, int64_t n, int64_t* detail) {
  read_values<Id>(picks.neighbors, n);
  if (picks.edge_ids) (q.edge_id_bytes == 4 ? read_values<int32_t> : read_values<int64_t>)(picks.edge_ids, n);
  const TypeRange range(*q.graph, q.graph->src_type[q.edge_type]);
  for (int64_t i = 0; i < n; ++i) {
    if (range.has(int64_t(picks.neighbors[i]))) continue;
    fail(detail, GLT_BAD_ROW, q.edge_type, -1, int64_t(picks.neighbors[i]));
    return false;
  }
  return true;
}

// Rows of the frontier and their picks, row after row.
struct Slice {
  int64_t begin, end;  // end moves down to what the memory held
  int64_t* counts;     // [end - begin]
  Picks picks;
  int64_t cap, used = 0;
  int32_t status = GLT_OK;
  int64_t detail[4] = {0, 0, 0, 0};
};

// Samples the rows of one slice. gids, uids: of the whole frontier.
template <class Id>
void sample_slice(const RowRequest& q, const int64_t* gids, const int64_t* uids, Slice& s, std::vector<uint32_t>& spare) {
  Row rows[kBlock];
  for (int64_t i = s.begin; i < s.end; i += kBlock) {
    const int64_t n = std::min<int64_t>(kBlock, s.end - i), start = s.used;
    s.status = find_rows<Id>(q, gids + i, uids + i, n, rows, s.detail);
    if (s.status) return;
    for (int64_t k = 0; k < n; ++k) {
      const Row& r = rows[k];
      if (s.used + r.count > s.cap) {
        s.end = i + k;
        break;
      }
      s.counts[i + k - s.begin] = r.count;
      pick_row<Id>(q, r, 0, r.count, s.picks + s.used, spare);
      s.used += r.count;
    }
    if (!read_picks<Id>(q, s.picks + start, s.used - start, s.detail)) s.status = GLT_BAD_ROW;
    if (s.status) return;
    if (s.end == s.begin) {
      fail(s.detail, s.status = GLT_GROW, 1, 0, rows[0].count);
      return;
    }
  }
}

}  // namespace glt
