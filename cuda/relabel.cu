// Local ids by first occurrence, in the order of the ids, whatever the order of the threads.
//
// An id that its list has already is in the table with its lid; the others come with known + position, which is higher. So
// the lowest order of an id is its lid if it is known, else that of its first position.
#include <glt/cuda.h>

#include "guard.h"
#include "occurrence.h"
#include "report.h"

namespace glt {
namespace {

struct Empty {
  OrderTable table;
  GLT_DEVICE void operator()(int64_t i) const { table.slots[i] = {kNobody, kNobody}; }
};

// Enters an id; -1 where that cannot be.
GLT_DEVICE int64_t enter(const OrderTable& table, int64_t id, int64_t position, int64_t order, int64_t* error) {
  if (id < 0) {
    report(error, GLT_BAD_ID, position, id);
    return -1;
  }
  const int64_t slot = table.enter(id, uint64_t(order));
  if (slot < 0) report(error, GLT_GROW, 0, 0, 2 * (int64_t(table.mask) + 1));
  return slot;
}

struct EnterKnown {
  OrderTable table;
  const int64_t* known;
  int64_t* error;
  GLT_DEVICE void operator()(int64_t i) const { enter(table, known[i], i, i, error); }
};

struct EnterNew {
  OrderTable table;
  const int64_t *ids, *count, *num_unique;
  int64_t *slot, *error;
  GLT_DEVICE void operator()(int64_t i) const {
    slot[i] = i < *count ? enter(table, ids[i], i, *num_unique + i, error) : -1;
  }
};

struct FlagFirst {
  OrderTable table;
  const int64_t *slot, *num_unique;
  uint8_t* is_new;
  GLT_DEVICE void operator()(int64_t i) const {
    is_new[i] = slot[i] >= 0 && table.slots[slot[i]].order == uint64_t(*num_unique + i);
  }
};

struct AppendNew {
  OrderTable table;
  const int64_t *ids, *slot;
  const uint8_t* is_new;
  const int64_t *rank, *num_unique;
  int64_t* unique;
  int64_t cap;
  int64_t* error;
  GLT_DEVICE void operator()(int64_t i) const {
    if (!is_new[i]) return;
    const int64_t lid = *num_unique + rank[i] - 1;
    if (lid >= cap) return report(error, GLT_GROW, 2, 0, 2 * (lid + 1));
    unique[lid] = ids[i];
    table.slots[slot[i]].order = uint64_t(lid);  // known from now on
  }
};

struct ReadLid {
  OrderTable table;
  const int64_t *slot, *rank;
  int64_t n;
  int64_t *num_unique, *lids;
  GLT_DEVICE void operator()(int64_t i) const {
    lids[i] = slot[i] >= 0 ? int64_t(table.slots[slot[i]].order) : -1;
    if (i == n - 1) *num_unique += rank[i];
  }
};

}  // namespace
}  // namespace glt

int32_t glt_cuda_relabel_known(const int64_t* known, int64_t n, int32_t fresh, void* memory, int64_t num_slots,
                               int64_t* error, int64_t* detail, void* stream) try {
  glt::OrderTable table;
  if (!glt::open_table(memory, num_slots, &table)) return glt::fail(detail, GLT_BAD_ARG, num_slots);
  const int32_t status = fresh ? glt::for_each(num_slots, glt::Empty{table}, stream, detail) : GLT_OK;
  return status ? status : glt::for_each(n, glt::EnterKnown{table, known, error}, stream, detail);
}
GLT_CATCH(detail)

int32_t glt_cuda_relabel_find(const int64_t* ids, int64_t n, const int64_t* count, const int64_t* num_unique,
                              void* memory, int64_t num_slots, int64_t* slot, uint8_t* is_new, int64_t* error,
                              int64_t* detail, void* stream) try {
  glt::OrderTable table;
  if (!glt::open_table(memory, num_slots, &table)) return glt::fail(detail, GLT_BAD_ARG, num_slots);
  const int32_t status = glt::for_each(n, glt::EnterNew{table, ids, count, num_unique, slot, error}, stream, detail);
  return status ? status : glt::for_each(n, glt::FlagFirst{table, slot, num_unique, is_new}, stream, detail);
}
GLT_CATCH(detail)

int32_t glt_cuda_relabel_number(const int64_t* ids, int64_t n, const int64_t* slot, const uint8_t* is_new,
                                const int64_t* rank, void* memory, int64_t num_slots, int64_t* unique, int64_t cap,
                                int64_t* num_unique, int64_t* lids, int64_t* error, int64_t* detail, void* stream) try {
  glt::OrderTable table;
  if (!glt::open_table(memory, num_slots, &table)) return glt::fail(detail, GLT_BAD_ARG, num_slots);
  const glt::AppendNew append{table, ids, slot, is_new, rank, num_unique, unique, cap, error};
  const int32_t status = glt::for_each(n, append, stream, detail);
  return status ? status : glt::for_each(n, glt::ReadLid{table, slot, rank, n, num_unique, lids}, stream, detail);
}
GLT_CATCH(detail)
