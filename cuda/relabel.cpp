// Local ids by first occurrence.
#include <glt/api.h>

#include "graph.h"
#include "guard.h"
#include "table.h"

namespace glt {
namespace {

template <class Slot>
int32_t relabel(Table<Slot> table, const int64_t* ids, int64_t n, int64_t* unique, int64_t* num_unique, int64_t cap,
                int32_t* lids, int64_t* detail) {
  constexpr int64_t kAhead = 16;
  int64_t count = *num_unique;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n && ids[i + kAhead] >= 0) table.prefetch(ids[i + kAhead]);
    if (ids[i] < 0) return fail(detail, GLT_BAD_ID, i, ids[i]);
    Slot& slot = table.find(ids[i]);
    if (slot.empty()) {
      if (count >= table.limit()) return fail(detail, GLT_GROW, 0, 0, 2 * (count + 1));
      if (count >= cap) return fail(detail, GLT_GROW, 2, 0, 2 * (count + 1));
      slot.set(ids[i], int32_t(count));
      unique[count++] = ids[i];
    }
    lids[i] = slot.lid();
  }
  *num_unique = count;
  return GLT_OK;
}

template <class Slot>
int32_t start(const int64_t* ids, int64_t n, void* memory, int64_t table_cap, bool fresh, int64_t* unique,
              int64_t* num_unique, int64_t cap, int32_t* lids, int64_t* detail) {
  Table<Slot> table(memory, table_cap, INT64_MAX);
  if (fresh) {
    table.clear();
    for (int64_t i = 0; i < *num_unique; ++i) {
      Slot& slot = table.find(unique[i]);
      if (slot.empty()) slot.set(unique[i], int32_t(i));
    }
  }
  return relabel(table, ids, n, unique, num_unique, cap, lids, detail);
}

}  // namespace
}  // namespace glt

int32_t glt_relabel(const int64_t* ids, int64_t n, void* table, int64_t table_cap, int32_t wide, int32_t fresh,
                    int64_t* unique, int64_t* num_unique, int64_t cap, int32_t* lids, int64_t* detail) try {
  if (table_cap < 1) return glt::fail(detail, GLT_BAD_ARG);
  if (fresh && *num_unique * 4 >= table_cap * 3) return glt::fail(detail, GLT_GROW, 0, 0, 2 * *num_unique);
  return (wide ? glt::start<glt::WideSlot> : glt::start<glt::NarrowSlot>)(ids, n, table, table_cap, fresh, unique,
                                                                         num_unique, cap, lids, detail);
}
GLT_CATCH(detail)
