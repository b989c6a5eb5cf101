// Finds the edges among some nodes: all entries of given rows whose source is a member of a set. By a scan as in has_edges.cpp:
// rows are in the order of user ids, which are not here for remote sources.
#include <glt/api.h>

#include <algorithm>
#include <vector>

#include "guard.h"
#include "rank.h"
#include "rows.h"
#include "threads.h"

namespace glt {
namespace {

constexpr int64_t kRowsAtOnce = int64_t(1) << 14;  // of a thread, between two copies to the caller's memory

struct Members {
  const uint64_t* blocks;
  int64_t first, num_ids;

  const uint64_t* line(uint64_t at) const { return blocks + at / kRankBits * kRankWords; }
  // Most sources are no members, and a rank takes three times as long as a bit.
  bool has(uint64_t at) const { return line(at)[1 + at % kRankBits / 64] >> (at % 64) & 1; }
  int32_t rank(uint64_t at) const { return find_rank(blocks, at, CountBits()); }
};

// The edges that a thread has found in some rows. Except in a single row, they are no more than the caller's memory holds.
struct Piece {
  std::vector<int64_t> counts, edge_rows;
  std::vector<int32_t> members;
};

// Finds the wanted edges of a row. keep: as many are stored, for which there is memory; the others are only counted.
template <class Id>
void scan_row(const Row& r, const Members& members, int64_t keep, Piece& out) {
  constexpr int64_t kAhead = 16;
  const Id* row = static_cast<const Id*>(r.first);
  const auto place = [&](int64_t k) { return uint64_t(int64_t(row[k]) - members.first); };
  const uint64_t range = uint64_t(members.num_ids);
  int64_t found = 0;
  for (int64_t k = 0; k < r.degree; ++k) {
    if (k + kAhead < r.degree && place(k + kAhead) < range) prefetch(members.line(place(k + kAhead)));
    const uint64_t at = place(k);
    if (at >= range || !members.has(at)) continue;
    if (r.sums && r.sums[k] == (k ? r.sums[k - 1] : 0)) continue;  // of weight 0: never in a batch
    if (found++ >= keep) continue;
    out.members.push_back(members.rank(at));
    out.edge_rows.push_back(r.edge_row + k);
  }
  out.counts.push_back(found);
}

struct Failure {
  int32_t status = GLT_OK;
  int64_t detail[4] = {0, 0, 0, 0};
};

// Finds rows [begin, end). Returns a glt_status.
template <class Id>
int32_t open_rows(const RowRequest& q, const int64_t* gids, int64_t begin, int64_t end, int64_t most_degree, Row* rows,
                  int64_t* detail) {
  const TypeRange range(*q.graph, q.graph->dst_type[q.edge_type]);
  const std::vector<int64_t> no_ids(kBlock, 0);  // nothing is drawn
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = std::min<int64_t>(kBlock, end - i);
    for (int64_t k = i; k < i + n; ++k)
      if (!range.has(gids[k])) return fail(detail, GLT_BAD_ID, k, gids[k]);
    if (const int32_t status = find_rows<Id>(q, gids + i, no_ids.data(), nullptr, n, rows + i, detail)) {
      if (status == GLT_BAD_ID) detail[0] += i;
      return status;
    }
    for (int64_t k = i; k < i + n; ++k)
      if (rows[k].degree > most_degree) return fail(detail, GLT_BAD_ARG, k, gids[k], rows[k].degree);
  }
  return GLT_OK;
}

// The caller's memory. rows, entries: how many it has by now.
struct Found {
  int64_t cap, *counts;
  int32_t* members;
  int64_t *edge_rows, rows, entries;

  int64_t left() const { return cap - entries; }

  // False where the next row of a piece does not fit; detail then says how many entries that row has.
  bool take(const Piece& piece, int64_t* detail) {
    size_t at = 0;
    for (const int64_t n : piece.counts) {
      if (n > left()) return fail(detail, GLT_GROW, 0, 0, n) == GLT_OK;
      std::copy_n(piece.members.data() + at, n, members + entries);
      std::copy_n(piece.edge_rows.data() + at, n, edge_rows + entries);
      counts[rows++] = n;
      entries += n;
      at += size_t(n);
    }
    return true;
  }
};

// Rows are scanned a few at a time: as many as fit, if all their entries were wanted, into the rest of the caller's memory, and
// at least one. So this allocates no more memory than the caller has given, for any request.
template <class Id>
int32_t induce(const RowRequest& q, const int64_t* gids, int64_t n, const Members& members, int64_t most_degree,
               int32_t threads, Found& found, int64_t* detail) {
  const int64_t step = kRowsAtOnce * std::max(1, threads);
  std::vector<Row> rows(size_t(std::min(step, n)));
  for (int64_t first = 0; first < n; first += step) {
    const int64_t m = std::min(step, n - first);
    std::vector<Failure> failed(std::max(1, threads));
    parallel(m, threads, 256, [&](int64_t begin, int64_t end, int index) {
      Failure& mine = failed[index];
      mine.status = open_rows<Id>(q, gids + first, begin, end, most_degree, rows.data(), mine.detail);
    });
    for (const Failure& f : failed)
      if (f.status) return fail(detail, f.status, f.detail[0], f.detail[1], f.detail[2], f.detail[3]);
    for (int64_t at = 0, to = 0; at < m; at = to) {
      const int64_t keep = found.left();
      for (int64_t entries = 0; to < m && (to == at || entries + rows[to].degree <= keep); ++to) entries += rows[to].degree;
      std::vector<Piece> pieces(std::max(1, threads));
      parallel(to - at, threads, 256, [&](int64_t begin, int64_t end, int index) {
        for (int64_t k = at + begin; k < at + end; ++k) {
          if (k + 1 < at + end) prefetch(rows[k + 1].first);
          scan_row<Id>(rows[k], members, keep, pieces[index]);
        }
      });
      for (const Piece& piece : pieces)
        if (!found.take(piece, detail)) return found.rows ? GLT_OK : GLT_GROW;
    }
  }
  return GLT_OK;
}

}  // namespace
}  // namespace glt

int32_t glt_induce(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows, const uint64_t* members,
                   int64_t first, int64_t num_ids, int64_t most_degree, int32_t threads, int64_t cap, int64_t* counts,
                   int32_t* ranks, int64_t* edge_rows, int64_t* done, int64_t* detail) try {
  const glt::RowRequest q{graph, edge_type, -1, false, 0};
  glt::Found found{cap, counts, ranks, edge_rows, 0, 0};
  const auto induce = graph->id_bytes == 4 ? glt::induce<int32_t> : glt::induce<int64_t>;
  first -= glt::source_shift(*graph, edge_type);  // compared with sources as they are stored
  const int32_t status = induce(q, gids, num_rows, {members, first, num_ids}, most_degree, threads, found, detail);
  done[0] = found.rows, done[1] = found.entries;
  return status;
}
GLT_CATCH(detail)
