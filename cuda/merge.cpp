// Batches whose rows lie on several owners: the owner of each id, and stitching the picks of all owners into one batch.
#include <glt/api.h>

#include <vector>

#include "graph.h"
#include "guard.h"
#include "shards.h"
#include "table.h"

namespace glt {
namespace {

// Neither loop branches on the owner of a row, which the branch predictor could not predict.
template <bool kCached>
int64_t find_owners(const int64_t* ids, int64_t n, const int64_t* bounds, const int32_t* owner_of_shard, int32_t num_shards,
                    int32_t cache, const int32_t* cached, int32_t* owner, int64_t* counts) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < bounds[0] || ids[i] >= bounds[num_shards]) return i;
    int32_t o = owner_of_shard[shard_of(bounds, num_shards, ids[i])];
    if (kCached) o += (cache - o) * (int32_t(o != 0) & int32_t(cached[i] >= 0));
    owner[i] = o;
    ++counts[o];
  }
  return n;
}

template <bool kCached, class Wire>
void group(const int64_t* ids, int64_t n, int32_t num_owners, const int32_t* owner, const int64_t* first_place,
           const int32_t* cached, const int64_t* begin, Wire* grouped, int64_t* place) {
  const int32_t cache = num_owners - 1;
  std::vector<int64_t> at(begin, begin + num_owners), add(num_owners, 0);
  for (int32_t o = 1; o < num_owners; ++o) add[o] = first_place[o] - (kCached && o == cache ? 0 : begin[o]);
  for (int64_t i = 0; i < n; ++i) {
    const int32_t o = owner[i];
    const int64_t in_cache = kCached && o == cache, k = at[o]++;
    const int64_t id = kCached ? ids[i] + (cached[i] - ids[i]) * in_cache : ids[i];
    grouped[k] = Wire(id);
    place[i] = add[o] + k + (id - k) * (int64_t(o == 0) | in_cache);
  }
}

template <class Slot>
int32_t fill(void* memory, int64_t table_cap, int64_t num_ids, const int64_t* const* lists, const int64_t* counts,
             int32_t num_lists, int64_t* detail) {
  Table<Slot> table(memory, table_cap, num_ids);
  table.clear();
  int64_t total = 0;
  for (int32_t t = 0; t < num_lists; ++t) {
    total += counts[t];
    if (total >= table.limit()) return fail(detail, GLT_GROW, 0, 0, 2 * (total + 1));
    for (int64_t i = 0; i < counts[t]; ++i) {
      if (uint64_t(lists[t][i]) >= uint64_t(num_ids)) return fail(detail, GLT_BAD_ID, i, lists[t][i]);
      Slot& slot = table.find(lists[t][i]);
      if (slot.empty()) slot.set(lists[t][i], int32_t(i));
    }
  }
  return GLT_OK;
}

// The position of the merge in one owner's answer.
struct Cursor {
  const glt_picks* picks;
  int64_t row = 0, entry = 0;

  int64_t at(const void* array, int64_t i) const {
    return picks->bytes == 4 ? int64_t(static_cast<const int32_t*>(array)[i]) : static_cast<const int64_t*>(array)[i];
  }
};

template <class Slot>
class Merge {
 public:
  Merge(const glt_merge_call& call, int64_t* detail)
      : c(call), detail(detail), table(c.table, c.table_cap, c.num_ids), cursors(c.num_owners) {
    for (int32_t o = 0; o < c.num_owners; ++o) cursors[o].picks = c.picks + o;
  }

  int32_t run(int64_t* num_nodes, int64_t* num_edges) {
    int64_t n = *num_nodes, e = *num_edges;
    for (int64_t row = 0; row < c.num_rows; ++row) {
      const int32_t o = c.owner ? c.owner[row] : 0;
      if (uint32_t(o) >= uint32_t(c.num_owners)) return fail(detail, GLT_BAD_ARG, row, o);
      Cursor& s = cursors[o];
      if (s.row >= s.picks->num_rows) return fail(detail, GLT_BAD_ARG, row, o, s.row);
      const int64_t count = s.at(s.picks->counts, s.row++);
      if (count < 0 || count > s.picks->num_entries - s.entry) return fail(detail, GLT_BAD_ARG, row, o, count);
      if (e + count > c.edge_cap) return fail(detail, GLT_GROW, 3, 0, e + count);
      const int32_t status = relabel(s, count, c.first_lid + row, &n, &e);
      if (status) return status;
    }
    for (const Cursor& s : cursors)  // an owner may answer with more than it was asked for
      if (s.row != s.picks->num_rows || s.entry != s.picks->num_entries) return fail(detail, GLT_BAD_ARG, -1, s.row);
    *num_nodes = n;
    *num_edges = e;
    return GLT_OK;
  }

 private:
  int32_t relabel(Cursor& s, int64_t count, int64_t dst, int64_t* n, int64_t* e) {
    constexpr int64_t kAhead = 24;
    const glt_picks& p = *s.picks;
    for (const int64_t stop = s.entry + count; s.entry < stop; ++s.entry, ++*e) {
      if (s.entry + kAhead < p.num_entries) {
        const int64_t later = s.at(p.neighbors, s.entry + kAhead);
        if (known(later)) table.prefetch(later);
      }
      const int64_t gid = s.at(p.neighbors, s.entry);
      if (!known(gid)) return fail(detail, GLT_BAD_ID, s.entry, gid);
      Slot& slot = table.find(gid);
      if (slot.empty()) {
        if (*n >= c.node_cap) return fail(detail, GLT_GROW, 2, 0, 2 * (*n + 1));
        slot.set(gid, int32_t(*n));
        c.gids[(*n)++] = gid;
      }
      c.src[*e] = slot.lid();
      c.dst[*e] = int32_t(dst);
      if (c.edge_rows) c.edge_rows[*e] = s.at(p.edge_rows, s.entry);
    }
    return GLT_OK;
  }

  bool known(int64_t gid) const { return uint64_t(gid - c.first_gid) < uint64_t(c.num_gids); }

  const glt_merge_call& c;
  int64_t* detail;
  Table<Slot> table;
  std::vector<Cursor> cursors;
};

bool is_narrow(int64_t num_ids) { return num_ids < INT64_C(0xffffffff); }

}  // namespace
}  // namespace glt

int32_t glt_route(const int64_t* ids, int64_t n, const int64_t* bounds, const int32_t* owner_of_shard, int32_t num_shards,
                  int32_t num_owners, const int64_t* first_place, const int32_t* cached, int32_t wire_bytes, int32_t* owner,
                  int64_t* begin, void* grouped, int64_t* place, int64_t* detail) try {
  std::vector<int64_t> counts(num_owners, 0);
  auto find_owners = cached ? glt::find_owners<true> : glt::find_owners<false>;
  const int64_t known =
      find_owners(ids, n, bounds, owner_of_shard, num_shards, num_owners - 1, cached, owner, counts.data());
  if (known < n) return glt::fail(detail, GLT_BAD_ID, known, ids[known]);
  begin[0] = 0;
  for (int32_t o = 0; o < num_owners; ++o) begin[o + 1] = begin[o] + counts[o];
  auto group = [&](auto* out) {
    auto of_kind = cached ? glt::group<true, std::decay_t<decltype(*out)>> : glt::group<false, std::decay_t<decltype(*out)>>;
    of_kind(ids, n, num_owners, owner, first_place, cached, begin, out, place);
  };
  if (wire_bytes == 4) group(static_cast<int32_t*>(grouped));
  else group(static_cast<int64_t*>(grouped));
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_table_fill(void* table, int64_t table_cap, int64_t num_ids, const int64_t* const* lists, const int64_t* counts,
                       int32_t num_lists, int64_t* detail) try {
  if (table_cap < 2) return glt::fail(detail, GLT_BAD_ARG, table_cap);
  auto fill = glt::is_narrow(num_ids) ? glt::fill<glt::NarrowSlot> : glt::fill<glt::WideSlot>;
  return fill(table, table_cap, num_ids, lists, counts, num_lists, detail);
}
GLT_CATCH(detail)

int32_t glt_merge(const glt_merge_call* call, int64_t* num_nodes, int64_t* num_edges, int64_t* detail) try {
  if (glt::is_narrow(call->num_ids)) return glt::Merge<glt::NarrowSlot>(*call, detail).run(num_nodes, num_edges);
  return glt::Merge<glt::WideSlot>(*call, detail).run(num_nodes, num_edges);
}
GLT_CATCH(detail)
