// gid -> lid while a batch is made, by threads in any order; two tables for one job. As in occurrence.h a slot keeps the
// lowest order that its id came with: the lid of a known id, or the number of known ids + position of a new one. Here ids
// and orders are below 2^32 - 1, an id is entered with one atomic step mostly, and all bytes of an empty table are 0xff.
#pragma once
#include "device.cuh"
#include "random.h"

namespace glt {

constexpr uint32_t kNoSlot = ~uint32_t(0);

// One order for every node of the graph.
struct DirectLids {
  uint32_t* orders;

  GLT_DEVICE uint32_t enter(int64_t id, uint32_t order) const {
    Atomic::min(orders + id, order);
    return uint32_t(id);
  }
  GLT_DEVICE uint32_t order(uint32_t slot) const { return Atomic::read(orders + slot); }
  GLT_DEVICE int64_t id(uint32_t slot) const { return slot; }
  GLT_DEVICE void set(uint32_t slot, uint32_t lid) const { Atomic::write(orders + slot, lid); }
};

// Open addressing with linear probing; a slot is (id, order) in one word, so the minimum of words with one id is that of
// their orders. An id never moves, so a thread that meets another one goes on for good: at most one visit to each slot.
struct HashedLids {
  uint64_t* slots;
  uint32_t mask;  // number of slots - 1, a power of two
  int32_t shift;  // 64 - log2(number of slots)

  static constexpr uint64_t kEmpty = ~uint64_t(0);

  // The id's slot, kNoSlot where the table is full.
  GLT_DEVICE uint32_t enter(int64_t id, uint32_t order) const {
    const uint64_t mine = uint64_t(id) << 32 | order;
    uint32_t at = uint32_t(uint64_t(id) * kGolden >> shift);
    for (uint64_t visits = 0; visits <= mask; ++visits, at = (at + 1) & mask) {
      uint64_t seen = Atomic::read(slots + at);
      if (seen == kEmpty) seen = Atomic::swap_if(slots + at, kEmpty, mine);
      if (seen == kEmpty) return at;
      if (seen >> 32 != uint64_t(id)) continue;
      if (mine < seen) Atomic::min(slots + at, mine);
      return at;
    }
    return kNoSlot;
  }
  GLT_DEVICE uint32_t order(uint32_t slot) const { return uint32_t(Atomic::read(slots + slot)); }
  GLT_DEVICE int64_t id(uint32_t slot) const { return int64_t(Atomic::read(slots + slot) >> 32); }
  GLT_DEVICE void set(uint32_t slot, uint32_t lid) const { Atomic::write(slots + slot, uint64_t(id(slot)) << 32 | lid); }
};

}  // namespace glt
