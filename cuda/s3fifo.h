// One shard of a cache: which entries stay (the rules are in glt/cache.h). Its caller holds the lock.
//
// Entries 0 .. capacity - 1 are blocks of memory (id, then rows) and never move: the queues are lists through `next`.
// Entries from `capacity` on are ghosts, a ring of ids. Both are found through the one index, so that an entry that
// becomes a ghost is a change of one word.
#pragma once
#include <algorithm>

#include "id_index.h"
#include "random.h"

namespace glt {

constexpr int64_t kNoId = -1;

struct Queue {
  uint32_t front, back, size;

  void push(uint32_t entry, uint32_t* next) {
    if (size++) next[back] = entry;
    else front = entry;
    back = entry;
  }
  uint32_t pop(const uint32_t* next) {
    const uint32_t entry = front;
    front = next[entry];  // of no meaning for the last one
    --size;
    return entry;
  }
};

struct alignas(64) Shard {
  // a line that is only read, and one that the holder of the lock writes
  uint32_t capacity, small_share, num_ghosts;
  int64_t block_bytes;
  IdIndex index;
  uint32_t* next;    // [capacity]
  int64_t* ghosts;   // [num_ghosts] ids, kNoId where there is none
  char* blocks;      // [capacity] of block_bytes

  alignas(64) uint32_t lock;
  uint32_t used, next_ghost;
  Queue small, main;
  int64_t evictions;

  static uint32_t small_share_of(int64_t capacity) { return uint32_t(std::max<int64_t>(1, capacity / 10)); }
  static uint32_t num_ghosts_of(int64_t capacity) { return uint32_t(std::max<int64_t>(1, capacity - small_share_of(capacity))); }
  static int64_t index_size_of(int64_t capacity) { return (capacity + num_ghosts_of(capacity)) * 3 / 2 + 1; }

  char* block(uint32_t entry) const { return blocks + int64_t(entry) * block_bytes; }
  int64_t& id_of(uint32_t entry) const { return *reinterpret_cast<int64_t*>(block(entry)); }
  bool is_ghost(uint32_t entry) const { return entry >= capacity; }

  // What this id's entry may be: read without the lock, to prefetch it. Null for none.
  const char* guess(uint32_t tag) const {
    for (uint64_t at = index.home(tag);; at = index.after(at)) {
      const uint64_t word = index.get(at);
      if (!word) return nullptr;
      if (IdIndex::tag(word) == tag) return is_ghost(IdIndex::entry(word)) ? nullptr : block(IdIndex::entry(word));
    }
  }

  // The block of an id, which counts as a use; null where it is not cached.
  const char* find(uint32_t tag, int64_t id) const {
    const uint64_t at = index.find(tag, [&](uint32_t e) { return !is_ghost(e) && id_of(e) == id; });
    if (at == IdIndex::kNone) return nullptr;
    const uint64_t word = index.get(at);
    if (IdIndex::counter(word) < 3) index.set(at, word + 1);
    return block(IdIndex::entry(word));
  }

  // The block where the rows of a new entry belong; null where the id is cached already.
  char* insert(uint32_t tag, int64_t id) {
    const uint64_t at = index.find(tag, [&](uint32_t e) { return (is_ghost(e) ? ghosts[e - capacity] : id_of(e)) == id; });
    const bool was_ghost = at != IdIndex::kNone;
    if (was_ghost) {
      const uint32_t ghost = IdIndex::entry(index.get(at));
      if (!is_ghost(ghost)) return nullptr;
      ghosts[ghost - capacity] = kNoId;
      index.erase(at);
    }
    const uint32_t entry = used < capacity ? used++ : drop();
    id_of(entry) = id;
    index.add(tag, entry);
    (was_ghost ? main : small).push(entry, next);
    return block(entry);
  }

 private:
  uint64_t where(uint32_t entry) const {
    return index.find(uint32_t(mix(uint64_t(id_of(entry)))), [=](uint32_t e) { return e == entry; });
  }

  uint32_t drop() {
    ++evictions;
    return small.size >= small_share ? drop_small() : drop_main();
  }

  uint32_t drop_small() {
    for (;;) {
      const uint32_t entry = small.pop(next);
      const uint64_t at = where(entry), word = index.get(at);
      if (IdIndex::counter(word) <= 1) {
        become_ghost(entry);
        return entry;
      }
      index.set(at, IdIndex::pack(IdIndex::tag(word), entry, 0));
      main.push(entry, next);
      if (main.size > capacity - small_share) return drop_main();
    }
  }

  uint32_t drop_main() {
    for (;;) {
      const uint32_t entry = main.pop(next);
      const uint64_t at = where(entry), word = index.get(at);
      if (IdIndex::counter(word) == 0) {
        index.erase(at);
        return entry;
      }
      index.set(at, word - 1);
      main.push(entry, next);
    }
  }

  void become_ghost(uint32_t entry) {
    const uint32_t slot = next_ghost;
    next_ghost = slot + 1 == num_ghosts ? 0 : slot + 1;
    if (ghosts[slot] != kNoId)
      index.erase(index.find(uint32_t(mix(uint64_t(ghosts[slot]))), [=](uint32_t e) { return e == capacity + slot; }));
    ghosts[slot] = id_of(entry);
    const uint64_t at = where(entry);  // it may have moved
    index.set(at, IdIndex::pack(IdIndex::tag(index.get(at)), capacity + slot, 0));
  }
};

}  // namespace glt
