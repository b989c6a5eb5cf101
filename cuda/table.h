// gid -> local id: open addressing with linear probing over a table that the caller sized once and owns.
#pragma once
#include <cstring>

#include "random.h"

namespace glt {

// 8 bytes a slot: gid + 1 in the high half, lid in the low half. For gids below 2^32 - 1.
struct NarrowSlot {
  uint64_t v;
  bool empty() const { return v == 0; }
  bool holds(int64_t gid) const { return v >> 32 == uint64_t(gid) + 1; }
  int32_t lid() const { return int32_t(v); }
  void set(int64_t gid, int32_t lid) { v = (uint64_t(gid) + 1) << 32 | uint32_t(lid); }
};

struct WideSlot {
  int64_t key;
  int64_t value;
  bool empty() const { return key == 0; }
  bool holds(int64_t gid) const { return key == gid + 1; }
  int32_t lid() const { return int32_t(value); }
  void set(int64_t gid, int32_t lid) { key = gid + 1, value = lid; }
};

template <class Slot>
struct Table {
  Slot* slots;
  uint64_t mask;
  int bits;
  bool direct;  // as many slots as ids: slot = gid, no probing

  // capacity: number of slots. At least num_ids: direct. Else rounded down to a power of two.
  Table(void* memory, int64_t capacity, int64_t num_ids) : slots(static_cast<Slot*>(memory)) {
    bits = 63 - __builtin_clzll(uint64_t(capacity));
    mask = (uint64_t(1) << bits) - 1;
    direct = capacity >= num_ids;
    if (bits == 0) bits = 1;  // a table of one slot: any shift below 64 serves
    used = direct ? num_ids : int64_t(mask + 1);
  }
  int64_t used;

  void clear() { std::memset(static_cast<void*>(slots), 0, used * sizeof(Slot)); }
  int64_t next_base(int64_t) const { return 0; }  // as DirectTable's: here each batch clears
  int64_t limit() const { return direct ? INT64_MAX : used * 3 / 4; }  // most entries it may hold
  uint64_t start(int64_t gid) const { return direct ? uint64_t(gid) : (uint64_t(gid) * kGolden >> (64 - bits)) & mask; }
  void prefetch(int64_t gid) const { __builtin_prefetch(slots + start(gid), 1, 2); }

  // The slot that holds gid, or the empty one where it belongs.
  Slot& find(int64_t gid) const {
    uint64_t i = start(gid);
    if (!direct)
      while (!slots[i].empty() && !slots[i].holds(gid)) i = (i + 1) & mask;
    return slots[i];
  }

  // The lid of gid, which is `lid` if it had none.
  int32_t enter(int64_t gid, int32_t lid) const {
    Slot& slot = find(gid);
    if (slot.empty()) slot.set(gid, lid);
    return slot.lid();
  }
};

// The same with a slot of 4 bytes for every id below num_ids, base + lid: no keys, no probing. What is below base is of
// an earlier batch, so the table is cleared once in 2^31 local ids.
struct DirectTable {
  uint32_t* slots;
  int64_t used;
  uint32_t base;

  // from: 0 where the memory may hold anything, else next_base() of the batch before.
  DirectTable(void* memory, int64_t num_ids, int64_t from)
      : slots(static_cast<uint32_t*>(memory)), used(num_ids), base(from <= INT32_MAX ? uint32_t(from) : 0) {}
  void clear() {
    if (base) return;
    std::memset(slots, 0, used * sizeof(uint32_t));
    base = 1;
  }
  int64_t next_base(int64_t num_lids) const { return base + num_lids; }
  int64_t limit() const { return INT64_MAX; }
  void prefetch(int64_t gid) const { __builtin_prefetch(slots + gid, 1, 2); }

  // The lid of gid, which is `lid` if it had none; without a branch.
  int32_t enter(int64_t gid, int32_t lid) const {
    const uint32_t old = slots[gid], now = old < base ? base + uint32_t(lid) : old;
    slots[gid] = now;
    return int32_t(now - base);
  }
};

}  // namespace glt
