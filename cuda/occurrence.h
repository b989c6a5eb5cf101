// The first occurrence of each id, found by threads in any order: open addressing with linear probing over a table that
// the caller sized and owns. What is read from it afterwards does not depend on the order of the threads: a slot keeps
// the lowest `order` that its id came with. The slot of an id does depend on it, but no result depends on the slot.
#pragma once
#include "device.cuh"
#include "random.h"

namespace glt {

struct OrderSlot {
  uint64_t key;    // the id; kNobody while the slot is empty
  uint64_t order;  // the lowest so far
};

constexpr uint64_t kNobody = ~uint64_t(0);  // no id: ids are >= 0. As an order: higher than all.

struct OrderTable {
  OrderSlot* slots;
  uint64_t mask;  // number of slots - 1
  int32_t shift;  // 64 - log2(number of slots)

  GLT_DEVICE uint64_t start(int64_t id) const { return uint64_t(id) * kGolden >> shift; }

  // Enters an id >= 0; returns its slot, or -1 where the table is full.
  // A key never changes once it is set, so a thread that meets another id moves on for good. Only a slot that was seen empty can
  // be taken by another thread in between; the thread that lost then compares the winner's id. At most one visit to each slot.
  GLT_DEVICE int64_t enter(int64_t id, uint64_t order) const {
    uint64_t at = start(id);
    for (uint64_t visits = 0; visits <= mask; ++visits, at = (at + 1) & mask) {
      uint64_t key = Atomic::read(&slots[at].key);
      if (key == kNobody) {
        key = Atomic::swap_if(&slots[at].key, kNobody, uint64_t(id));
        if (key == kNobody) key = uint64_t(id);
      }
      if (key != uint64_t(id)) continue;
      Atomic::min(&slots[at].order, order);
      return int64_t(at);
    }
    return -1;
  }

  // The order of an id that an earlier kernel entered; kNobody for others.
  GLT_DEVICE uint64_t find(int64_t id) const {
    uint64_t at = start(id);
    for (uint64_t visits = 0; visits <= mask; ++visits, at = (at + 1) & mask) {
      const OrderSlot slot = slots[at];
      if (slot.key == uint64_t(id)) return slot.order;
      if (slot.key == kNobody) break;
    }
    return kNobody;
  }
};

// num_slots: a power of two, at least 2. False otherwise.
inline bool open_table(void* memory, int64_t num_slots, OrderTable* table) {
  if (num_slots < 2 || (num_slots & (num_slots - 1))) return false;
  *table = {static_cast<OrderSlot*>(memory), uint64_t(num_slots) - 1, 64 - __builtin_ctzll(uint64_t(num_slots))};
  return true;
}

}  // namespace glt
