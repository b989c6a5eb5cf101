// Sampling rows of one edge type: the steps that glt_pick_rows and glt_khop share.
#pragma once
#include <utility>
#include <vector>

#include "excluded.h"
#include "graph.h"
#include "labor_block.h"
#include "pick.h"
#include "weighted_rows.h"
#include "window.h"

namespace glt {

constexpr int kBlock = 128;  // rows resolved and prefetched together

struct RowRequest {
  const glt_graph* graph;
  int32_t edge_type, fanout;
  bool replace;
  uint64_t key;  // draw_key
  const void* const* edge_ids = nullptr;  // [R * P], where edge ids are wanted
  int32_t edge_id_bytes = 0;
  const ExcludedRows* excluded = nullptr;  // where something is
  const glt_trees* trees = nullptr;        // of a disjoint batch
  const uint8_t* first_bytes = nullptr;    // by LABOR, see FirstBytes
};

// A row that was found, or the part of it in its window: where its neighbours and their edge ids start, how many there are
// without the excluded ones, and how many are picked.
struct Row {
  const void* first;
  const char* first_edge;
  int64_t edge_row, degree, count;
  uint64_t stream;        // by LABOR the key of the numbers
  ExcludedRow excluded;
  const int32_t* sums;    // null: all entries weigh the same. Else `degree` counts the excluded entries, too
  const uint32_t* drawn;  // the positions that are picked, where draw_rows has drawn them; else null
  const int64_t* times;   // null: every entry can be picked
  uint32_t base;          // of `sums`
  int32_t tree;

  WeightedRow weighted() const { return {sums, degree, excluded, base}; }
  WeightedRow whole() const { return {sums, sums ? degree : degree + excluded.n, excluded, base}; }
};

// Prefetches the sums that draws of a row read: all sums of a short row; of a long one the end, and the places at which the first
// picks would be if all weights were the same.
inline void prefetch_sums(const Row& r, int32_t fanout) {
  constexpr int64_t kLine = 64 / sizeof(int32_t), kShort = 4 * kLine;
  const int64_t n = r.degree, some = n <= kShort ? n : fanout < 0 ? kShort : 0;
  for (int64_t p = 0; p < some; p += kLine) prefetch_l2(r.sums + p);
  for (int32_t i = 0; n > kShort && i < std::min<int64_t>(fanout, kFewPicks); ++i)
    prefetch_l2(r.sums + draw(r.stream, uint32_t(i), uint32_t(n)));
  if (n) prefetch_l2(r.sums + n - 1);
}

// Counts the entries of rows that are picked by weight, unless they have been drawn.
inline void count_weighted(const RowRequest& q, int64_t n, Row* rows) {
  for (int64_t i = 0; i < n; ++i)
    if (rows[i].sums && !rows[i].drawn) prefetch_sums(rows[i], q.fanout);
  for (int64_t i = 0; i < n; ++i)
    if (rows[i].sums && !rows[i].drawn) rows[i].count = rows[i].weighted().count(q.fanout, q.replace);
}

// Prefetches the times that the search for a window reads: all times of a short row; of a long one where the search begins.
inline void prefetch_times(const Row& r) {
  constexpr int64_t kLine = 64 / sizeof(int64_t), kShort = 8 * kLine;
  const int64_t step = r.degree <= kShort ? kLine : r.degree / 8;
  for (int64_t p = 0; p < r.degree; p += step) prefetch(r.times + p);
  if (r.degree) prefetch(r.times + r.degree - 1);
}

// Prefetches the first entries of a row that is read whole; the processor's own prefetcher loads the others.
template <class Id>
void prefetch_entries(const Row& r) {
  constexpr int64_t kLine = 64 / sizeof(Id), kSome = 4 * kLine;
  for (int64_t p = 0; p < std::min(r.degree, kSome); p += kLine) prefetch(static_cast<const Id*>(r.first) + p);
}

// Counts the picks of a row, unless they are by weight: those need the sums.
inline void open_row(const RowRequest& q, Row& r) {
  if (r.sums) return;
  r.degree = left_of(r.degree, r.excluded);
  r.count = pick_count(r.degree, q.fanout, q.replace);
}

// Narrows rows with times, which find_rows has prefetched, to the window of their tree.
template <class Id>
void open_windows(const RowRequest& q, int64_t n, Row* rows) {
  for (int64_t i = 0; i < n; ++i) {
    Row& r = rows[i];
    if (!r.times) continue;
    const TimeWindow window = window_of(r.times, r.degree, *q.trees, r.tree);
    r.excluded = within(r.excluded, window);
    r.first = static_cast<const Id*>(r.first) + window.begin;
    if (r.first_edge) r.first_edge += window.begin * q.edge_id_bytes;
    r.edge_row += window.begin;
    r.degree = window.end - window.begin;
    if (r.sums) {
      r.base = window.begin ? uint32_t(r.sums[window.begin - 1]) : 0;
      r.sums += window.begin;
    }
    open_row(q, r);
  }
}

// Resolves up to kBlock rows. gids must be in the range of the edge type's destination type. uids may be null: then
// they are read from the graph. trees: the tree of each row, null where the batch has none. On failure fills detail and
// returns the status.
template <class Id>
int32_t find_rows(const RowRequest& q, const int64_t* gids, const int64_t* uids, const int32_t* trees, int64_t n, Row* rows,
                  int64_t* detail) {
  const glt_graph& g = *q.graph;
  const int32_t* const* sums = g.sums;
  const int64_t* const* times = has_windows(q.trees) ? g.times : nullptr;
  const int64_t* ptr[kBlock];
  int32_t part[kBlock];
  int64_t uid[kBlock];
  if (g.replaced && g.replaced[q.edge_type].num_rows) {
    const glt_replaced& r = g.replaced[q.edge_type];
    for (int64_t i = 0; i < n && r.blocks; ++i) {
      const uint64_t at = uint64_t(gids[i] - r.first);
      prefetch_l2(r.blocks + (at < uint64_t(r.num_ids) ? at / kRankBits * kRankWords : 0));
    }
    for (int64_t i = 0; i < n && !r.blocks; ++i) prefetch_l2(r.hint + (gids[i] >> r.shift));
    for (int64_t i = 0; i < n && !r.blocks; ++i) prefetch_l2(r.gids + r.hint[gids[i] >> r.shift]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = segment_of(g, gids[i]);
    const RowPlace place(g, q.edge_type, s, gids[i]);
    part[i] = place.part;
    if (!g.indptr[part[i]]) return fail(detail, GLT_BAD_ID, i, gids[i]);
    ptr[i] = g.indptr[part[i]] + place.row;
    prefetch_l2(ptr[i]);
    uid[i] = uids ? uids[i] : int64_t(static_cast<const Id*>(g.user_ids[s])[gids[i] - g.bounds[s]]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = ptr[i][0], end = ptr[i][1];
    if (!is_sound_row(begin, end, g.num_edges[part[i]]))
      return fail(detail, GLT_BAD_ROW, q.edge_type, gids[i], begin, end);
    Row& r = rows[i];
    r.first = static_cast<const Id*>(g.indices[part[i]]) + begin;
    r.first_edge = q.edge_ids ? static_cast<const char*>(q.edge_ids[part[i]]) + begin * q.edge_id_bytes : nullptr;
    r.edge_row = g.edge_base[part[i]] + begin;
    r.degree = end - begin;
    r.excluded = q.excluded ? q.excluded->of(gids[i]) : ExcludedRow{nullptr, 0};
    r.stream = draw_stream(g, trees ? tree_key(q.key, trees[i]) : q.key, uid[i]);
    r.drawn = nullptr;
    if (g.all_ids && !q.first_bytes) prefetch_entries<Id>(r);
    r.sums = sums && sums[part[i]] ? sums[part[i]] + begin : nullptr;
    r.base = 0;
    r.times = times && times[part[i]] ? times[part[i]] + begin : nullptr;
    if (!r.times) {
      open_row(q, r);
      continue;
    }
    r.tree = trees[i];
    prefetch_times(r);
  }
  if (times) open_windows<Id>(q, n, rows);
  return GLT_OK;
}

// Output of picks. edge_ids and edge_rows may be null. Values are first written as addresses, which read_values replaces.
struct Picks {
  uint64_t* neighbors;
  uint64_t* edge_ids;
  int64_t* edge_rows;

  Picks operator+(int64_t n) const {
    return {neighbors + n, edge_ids ? edge_ids + n : nullptr, edge_rows ? edge_rows + n : nullptr};
  }
};

// Converts n ascending picks among the entries of a row that are not excluded to positions in the whole row.
inline void move_past(const ExcludedRow& excluded, uint32_t* picks, int64_t n) {
  int64_t k = 0;
  for (int64_t i = 0; i < n; ++i) {
    while (k < excluded.n && excluded.at(k) - k <= int64_t(picks[i])) ++k;
    picks[i] += uint32_t(k);
  }
}

// Draws all positions of a row that are picked by weight, ascending.
inline void draw_weighted(const RowRequest& q, const Row& r, uint32_t* out) {
  const WeightedRow row = r.weighted();
  if (!q.replace) return pick_weighted(row, r.stream, uint32_t(r.count), out);
  const uint32_t left = row.left();
  for (int64_t i = 0; i < r.count; ++i) out[i] = pick_repeatedly(row, r.stream, uint32_t(i), left);
  std::sort(out, out + r.count);
}

// Memory that grows: the positions of the longest row that is drawn from.
struct Spare {
  std::vector<uint32_t> picks;
  std::vector<LaborEntry> found;
  LaborRoom labor;
};

template <class Id>
LaborRow<Id> labor_row_of(const RowRequest& q, const Row& r) {
  return labor_row<Id>(*q.graph, q.edge_type, r.first, r.stream, r.whole());
}

// Memory for the positions that draw_rows draws for the rows of a block.
using DrawnRows = uint32_t[kBlock * kFewPicks];

// Puts rows of like lengths next to each other: lanes side by side take as many steps as the longest of their rows.
inline void sort_by_length(Row** rows, int64_t n) {
  constexpr int kBits = 64;
  Row* given[kBlock];
  int32_t place[kBits] = {};
  const auto bits = [](const Row& r) { return kBits - 1 - __builtin_clzll(uint64_t(r.degree)); };  // of rows with entries
  for (int64_t i = 0; i < n; ++i) ++place[bits(*(given[i] = rows[i]))];
  for (int32_t b = 0, before = 0; b < kBits; ++b) before += std::exchange(place[b], before);
  for (int64_t i = 0; i < n; ++i) rows[place[bits(*given[i])]++] = given[i];
}

// Counts the entries of the rows of a block that are picked by weight, and draws them where they are few.
inline void draw_weighted_rows(const RowRequest& q, int64_t n, Row* rows, DrawnRows& out) {
  constexpr int64_t kFewRows = 4;  // lanes without a row take as long as those with one
  const bool few = !q.replace && !q.graph->all_ids && q.fanout > 0 && q.fanout <= kFewPicks;
  Row* drawn[kBlock];
  int64_t m = 0;
  for (int64_t i = 0; i < n; ++i) {
    Row& r = rows[i];
    if (!few || !r.sums || r.excluded.n || r.degree <= q.fanout) continue;
    r.drawn = out + m * q.fanout;
    drawn[m++] = &r;
  }
  while (m % kLanes && m % kLanes <= kFewRows) drawn[--m]->drawn = nullptr;
  sort_by_length(drawn, m);
  count_weighted(q, n, rows);
  if (!m) return;
  WeightedLanes lanes[2];
  const auto fill = [&](int64_t begin, WeightedLanes& with) {
    with.n = 0;
    for (int64_t k = begin; k < std::min<int64_t>(m, begin + kLanes); ++k)
      with.add(drawn[k]->weighted(), drawn[k]->stream, out + (drawn[k]->drawn - out));
  };
  fill(0, lanes[0]);
  lanes[0].prefetch_ends();
  for (int32_t i = 0; i < q.fanout; ++i) lanes[0].prefetch_draw(i);
  for (int64_t i = 0; i < m; i += kLanes) {
    WeightedLanes &now = lanes[i / kLanes % 2], &next = lanes[(i / kLanes + 1) % 2];
    fill(i + kLanes, next);
    pick_in_lanes(now, q.fanout, next);
    for (int l = 0; l < now.n; ++l) drawn[i + l]->count = now.counts[l];
  }
}

// Draws the rows of a block by LABOR, where first bytes are enough.
template <class Id>
void draw_labor_rows(const RowRequest& q, int64_t n, Row* rows, DrawnRows& out, Spare& memory) {
  if (!q.first_bytes || q.fanout > kFewPicks) return;
  LaborRows<Id, kBlock> drawn;
  for (int64_t i = 0; i < n; ++i) {
    Row& r = rows[i];
    if (r.sums || r.excluded.n || r.degree <= q.fanout) continue;
    uint32_t* const picks = out + i * q.fanout;
    drawn.add(static_cast<const Id*>(r.first), r.degree, picks);
    r.drawn = picks;
  }
  if (drawn.n) pick_by_bytes(drawn, labor_row_of<Id>(q, rows[0]), q.first_bytes, uint32_t(q.fanout), memory.labor);
}

// Draws the rows of a block that take less time together than one after another.
template <class Id>
void draw_rows(const RowRequest& q, int64_t n, Row* rows, DrawnRows& out, Spare& memory) {
  if (q.graph->sums) draw_weighted_rows(q, n, rows, out);
  if (q.graph->all_ids) draw_labor_rows<Id>(q, n, rows, out, memory);
}

// Prefetches what drawing this row reads, while the row before is drawn.
template <class Id>
void prefetch_row(const RowRequest& q, const Row& r) {
  if (q.graph->all_ids && !q.first_bytes && r.count < r.degree) prefetch_sources(labor_row_of<Id>(q, r));
}

// Writes the picks [begin, end) of a row.
template <class Id>
void pick_row(const RowRequest& q, const Row& r, int64_t begin, int64_t end, const Picks& out, Spare& memory) {
  const auto write = [&](const auto& position) {
    const Id* first = static_cast<const Id*>(r.first);
    for (int64_t k = begin; k < end; ++k) out.neighbors[k - begin] = uint64_t(first + position(k));
    if (out.edge_ids)
      for (int64_t k = begin; k < end; ++k) out.edge_ids[k - begin] = uint64_t(r.first_edge + position(k) * q.edge_id_bytes);
    if (out.edge_rows)
      for (int64_t k = begin; k < end; ++k) out.edge_rows[k - begin] = r.edge_row + position(k);
  };
  if (r.drawn) return write([&](int64_t k) { return int64_t(r.drawn[k]); });
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
  const bool latest = r.times && q.trees->last;
  if (!r.sums && (latest || (r.count == r.degree && !(q.replace && q.fanout >= 0)))) {
    const int64_t skipped = r.degree - r.count;
    if (!r.excluded.n) return write([&](int64_t k) { return skipped + k; });
    return write([&](int64_t k) { return r.excluded.past(skipped + k); });  // from anywhere in a row of any length, without memory
  }
  std::vector<uint32_t>& spare = memory.picks;
  if (int64_t(spare.size()) < r.count) spare.resize(r.count);
  if (q.graph->all_ids) {
    pick_by_labor(labor_row_of<Id>(q, r), q.first_bytes, uint32_t(r.count), spare.data(), memory.found);
    return write([&](int64_t k) { return int64_t(spare[k]); });
  }
  if (r.sums) {
    draw_weighted(q, r, spare.data());
    return write([&](int64_t k) { return int64_t(spare[k]); });
  }
  if (q.replace) pick_repeated(r.stream, uint32_t(r.degree), uint32_t(r.count), spare.data());
  else pick_distinct(r.stream, uint32_t(r.degree), uint32_t(r.count), spare.data());
  if (r.excluded.n) move_past(r.excluded, spare.data(), r.count);
  write([&](int64_t k) { return int64_t(spare[k]); });
}

// Replaces n addresses by the values there. Loading each value as it is picked was 1.4 times slower: the misses of a row come in
// a burst that is longer than the memory system's queue.
template <class Value>
void read_values(uint64_t* at, int64_t n) {
  constexpr int64_t kAhead = 32;
  for (int64_t i = 0; i < std::min(kAhead, n); ++i) prefetch_l2(reinterpret_cast<const void*>(at[i]));
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch_l2(reinterpret_cast<const void*>(at[i + kAhead]));
    at[i] = uint64_t(int64_t(*reinterpret_cast<const Value*>(at[i])));
  }
}

// Reads the values of n picks from their addresses. False, with detail, for a neighbour that is no node.
template <class Id>
bool read_picks(const RowRequest& q, const Picks& picks, int64_t n, int64_t* detail) {
  read_values<Id>(picks.neighbors, n);
  if (picks.edge_ids) (q.edge_id_bytes == 4 ? read_values<int32_t> : read_values<int64_t>)(picks.edge_ids, n);
  const TypeRange range(*q.graph, q.graph->src_type[q.edge_type]);
  if (const int64_t shift = source_shift(*q.graph, q.edge_type))
    for (int64_t i = 0; i < n; ++i) picks.neighbors[i] += uint64_t(shift);
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

// Samples the rows of one slice. gids, uids, trees (null where there are none): of the whole frontier.
template <class Id>
void sample_slice(const RowRequest& q, const int64_t* gids, const int64_t* uids, const int32_t* trees, Slice& s,
                  Spare& spare) {
  Row rows[kBlock];
  DrawnRows drawn;
  for (int64_t i = s.begin; i < s.end; i += kBlock) {
    const int64_t n = std::min<int64_t>(kBlock, s.end - i), start = s.used;
    s.status = find_rows<Id>(q, gids + i, uids + i, trees ? trees + i : nullptr, n, rows, s.detail);
    if (s.status) return;
    draw_rows<Id>(q, n, rows, drawn, spare);
    for (int64_t k = 0; k < n; ++k) {
      const Row& r = rows[k];
      if (s.used + r.count > s.cap) {
        s.end = i + k;
        break;
      }
      s.counts[i + k - s.begin] = r.count;
      if (k + 1 < n) prefetch_row<Id>(q, rows[k + 1]);
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
