// The stored edges between nodes of a batch. A thread takes up to 32 entries of a row, so that a node of very high degree is shared
// by as many threads as it has entries for; in a first pass it marks the wanted entries in a word, in a second it writes
// them where a scan of the counts says. So the order is that of the rows and their entries.
#include <glt/cuda.h>

#include <type_traits>

#include "guard.h"
#include "locate.h"
#include "occurrence.h"
#include "report.h"

namespace glt {
namespace {

constexpr int64_t kPiece = 32;  // entries: a bit each of a word

struct CountPieces {
  glt_graph g;
  int32_t edge_type;
  const int64_t* gids;
  int64_t most_degree;
  int64_t *pieces, *error;

  GLT_DEVICE void operator()(int64_t i) const {
    Located row;
    const int32_t status = locate_row(g, edge_type, gids[i], &row);
    pieces[i] = 0;
    if (status == GLT_BAD_ID) return report(error, status, i, gids[i]);
    if (status) return report(error, status, edge_type, gids[i], row.begin, row.end);
    const int64_t degree = row.end - row.begin;
    if (degree > most_degree) return report(error, GLT_BAD_ARG, i, gids[i], degree, edge_type);
    pieces[i] = (degree + kPiece - 1) / kPiece;
  }
};

// The rows, and the ids of their sources in the table.
template <class Id>
struct PiecesOfRows {
  glt_graph g;
  int32_t edge_type;
  const int64_t *gids, *bases, *first;
  int64_t num_rows;
  OrderTable known;

  struct Piece {
    const Id* entries;
    const int32_t* sums;  // null: all entries weigh the same
    int64_t row, base, edge_row, from, size;
  };

  // Finds the row with first[row] <= k < first[row + 1]; rows without entries have no piece.
  GLT_DEVICE Piece open(int64_t k) const {
    int64_t row = 0, end = num_rows;
    while (end - row > 1) {
      const int64_t middle = row + (end - row) / 2;
      if (first[middle] <= k) row = middle;
      else end = middle;
    }
    Located at;
    if (locate_row(g, edge_type, gids[row], &at)) return {nullptr, nullptr, row, 0, 0, 0, 0};
    const int64_t from = (k - first[row]) * kPiece, left = at.end - at.begin - from;
    const Id* entries = static_cast<const Id*>(g.indices[at.part]) + at.begin;
    const int32_t* sums = weighted_row(g, at, {nullptr, 0}).sums;
    const int64_t edge_row = g.edge_base[at.part] + at.begin;
    return {entries, sums, row, bases ? bases[row] : 0, edge_row, from, left < kPiece ? left : kPiece};
  }

  // The order of an entry's source in the table; kNobody if it is not there.
  GLT_DEVICE uint64_t order(const Piece& piece, int64_t position) const {
    const int64_t gid = int64_t(piece.entries[position]);
    return TypeRange(g, g.src_type[edge_type]).has(gid) ? known.find(piece.base + gid) : kNobody;
  }
};

template <class Rows>
struct FindEntries {
  Rows rows;
  uint32_t* wanted;
  int64_t* counts;

  GLT_DEVICE void operator()(int64_t k) const {
    const auto piece = rows.open(k);
    uint32_t word = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < piece.size; ++i) {
      const int64_t at = piece.from + i;
      if (rows.order(piece, at) == kNobody) continue;
      if (piece.sums && piece.sums[at] == (at ? piece.sums[at - 1] : 0)) continue;  // of weight 0: never in a batch
      word |= uint32_t(1) << i;
      ++count;
    }
    wanted[k] = word, counts[k] = count;
  }
};

template <class Rows>
struct WriteEntries {
  Rows rows;
  const uint32_t* wanted;
  const int64_t* to;
  int64_t *src, *dst, *edge_rows;

  GLT_DEVICE void operator()(int64_t k) const {
    const uint32_t word = wanted[k];
    if (!word) return;
    const auto piece = rows.open(k);
    int64_t out = to[k];
    for (int64_t i = 0; i < piece.size; ++i) {
      if (!(word >> i & 1)) continue;
      src[out] = int64_t(rows.order(piece, piece.from + i));
      dst[out] = piece.row;
      edge_rows[out] = piece.edge_row + piece.from + i;
      ++out;
    }
  }
};

template <class Run>
int32_t with_rows(const glt_graph* graph, int32_t edge_type, const int64_t* gids, const int64_t* bases, const int64_t* first,
                  int64_t num_rows, const void* memory, int64_t num_slots, int64_t* detail, const Run& run) {
  OrderTable table;
  const bool good = edge_type >= 0 && edge_type < graph->num_edge_types && (graph->id_bytes == 4 || graph->id_bytes == 8);
  if (!good) return fail(detail, GLT_BAD_ARG, edge_type, graph->id_bytes);
  if (!open_table(const_cast<void*>(memory), num_slots, &table)) return fail(detail, GLT_BAD_ARG, num_slots);
  if (graph->id_bytes == 4) return run(PiecesOfRows<int32_t>{*graph, edge_type, gids, bases, first, num_rows, table});
  return run(PiecesOfRows<int64_t>{*graph, edge_type, gids, bases, first, num_rows, table});
}

}  // namespace
}  // namespace glt

int32_t glt_cuda_induce_pieces(const glt_graph* graph, int32_t edge_type, const int64_t* gids, int64_t num_rows,
                               int64_t most_degree, int64_t* pieces, int64_t* error, int64_t* detail, void* stream) try {
  if (edge_type < 0 || edge_type >= graph->num_edge_types) return glt::fail(detail, GLT_BAD_ARG, edge_type);
  return glt::for_each(num_rows, glt::CountPieces{*graph, edge_type, gids, most_degree, pieces, error}, stream, detail);
}
GLT_CATCH(detail)

int32_t glt_cuda_induce_find(const glt_graph* graph, int32_t edge_type, const int64_t* gids, const int64_t* bases,
                             const int64_t* first, int64_t num_rows, int64_t num_pieces, const void* table, int64_t num_slots,
                             uint32_t* wanted, int64_t* counts, int64_t* detail, void* stream) try {
  return glt::with_rows(graph, edge_type, gids, bases, first, num_rows, table, num_slots, detail, [&](const auto& rows) {
    using Rows = std::decay_t<decltype(rows)>;
    return glt::for_each(num_pieces, glt::FindEntries<Rows>{rows, wanted, counts}, stream, detail);
  });
}
GLT_CATCH(detail)

int32_t glt_cuda_induce_write(const glt_graph* graph, int32_t edge_type, const int64_t* gids, const int64_t* bases,
                              const int64_t* first, int64_t num_rows, int64_t num_pieces, const void* table, int64_t num_slots,
                              const uint32_t* wanted, const int64_t* to, int64_t* src, int64_t* dst, int64_t* edge_rows,
                              int64_t* detail, void* stream) try {
  return glt::with_rows(graph, edge_type, gids, bases, first, num_rows, table, num_slots, detail, [&](const auto& rows) {
    using Rows = std::decay_t<decltype(rows)>;
    return glt::for_each(num_pieces, glt::WriteEntries<Rows>{rows, wanted, to, src, dst, edge_rows}, stream, detail);
  });
}
GLT_CATCH(detail)
