// The edges among some nodes: of given rows all entries whose source is a member of a set. As has_edges.cpp, a scan: rows are in
// the order of user ids, which are not here for remote sources.
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

// What a thread found in some rows.
struct Piece {
  std::vector<int64_t> counts, edge_rows;
  std::vector<int32_t> members;
  int32_t status = GLT_OK;
  int64_t detail[4] = {0, 0, 0, 0};
};

template <class Id>
void scan_row(const Row& r, const Members& members, Piece& out) {
  constexpr int64_t kAhead = 16;
  const Id* row = static_cast<const Id*>(r.first);
  const auto place = [&](int64_t k) { return uint64_t(int64_t(row[k]) - members.first); };
  const uint64_t range = uint64_t(members.num_ids);
  const size_t before = out.members.size();
  for (int64_t k = 0; k < r.degree; ++k) {
    if (k + kAhead < r.degree && place(k + kAhead) < range) prefetch(members.line(place(k + kAhead)));
    const uint64_t at = place(k);
    if (at >= range || !members.has(at)) continue;
    if (r.sums && r.sums[k] == (k ? r.sums[k - 1] : 0)) continue;  // of weight 0: never in a batch
    out.members.push_back(members.rank(at));
    out.edge_rows.push_back(r.edge_row + k);
  }
  out.counts.push_back(int64_t(out.members.size() - before));
}

template <class Id>
int32_t scan_rows(const RowRequest& q, const int64_t* gids, int64_t begin, int64_t end, const Members& members,
                  int64_t most_degree, Piece& out) {
  const TypeRange range(*q.graph, q.graph->dst_type[q.edge_type]);
  const std::vector<int64_t> no_ids(kBlock, 0);  // nothing is drawn
  Row rows[kBlock];
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = std::min<int64_t>(kBlock, end - i);
    for (int64_t k = i; k < i + n; ++k)
      if (!range.has(gids[k])) return fail(out.detail, GLT_BAD_ID, k, gids[k]);
    if (const int32_t status = find_rows<Id>(q, gids + i, no_ids.data(), nullptr, n, rows, out.detail)) {
      if (status == GLT_BAD_ID) out.detail[0] += i;
      return status;
    }
    for (int64_t k = 0; k < n; ++k) {
      if (rows[k].degree > most_degree) return fail(out.detail, GLT_BAD_ARG, i + k, gids[i + k], rows[k].degree);
      prefetch(rows[k].first);
    }
    for (int64_t k = 0; k < n; ++k) scan_row<Id>(rows[k], members, out);
  }
  return GLT_OK;
}

// The caller's memory. rows, entries: how many it has by now.
struct Found {
  int64_t cap, *counts;
  int32_t* members;
  int64_t *edge_rows, rows, entries;

  // False where the next row of a piece does not fit; detail then says how many entries that row has.
  bool take(const Piece& piece, int64_t* detail) {
    size_t at = 0;
    for (const int64_t n : piece.counts) {
      if (entries + n > cap) return fail(detail, GLT_GROW, 0, 0, n) == GLT_OK;
      std::copy_n(piece.members.data() + at, n, members + entries);
      std::copy_n(piece.edge_rows.data() + at, n, edge_rows + entries);
      counts[rows++] = n;
      entries += n;
      at += size_t(n);
    }
    return true;
  }
};

template <class Id>
int32_t induce(const RowRequest& q, const int64_t* gids, int64_t n, const Members& members, int64_t most_degree,
               int32_t threads, Found& found, int64_t* detail) {
  const int64_t step = kRowsAtOnce * std::max(1, threads);
  for (int64_t first = 0; first < n; first += step) {
    std::vector<Piece> pieces(std::max(1, threads));
    parallel(std::min(step, n - first), threads, 256, [&](int64_t begin, int64_t end, int index) {
      Piece& mine = pieces[index];
      mine.status = scan_rows<Id>(q, gids, first + begin, first + end, members, most_degree, mine);
    });
    for (const Piece& piece : pieces) {
      const int64_t* d = piece.detail;
      if (piece.status) return fail(detail, piece.status, d[0], d[1], d[2], d[3]);
    }
    for (const Piece& piece : pieces)
      if (!found.take(piece, detail)) return found.rows ? GLT_OK : GLT_GROW;
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
  const int32_t status = induce(q, gids, num_rows, {members, first, num_ids}, most_degree, threads, found, detail);
  done[0] = found.rows, done[1] = found.entries;
  return status;
}
GLT_CATCH(detail)
