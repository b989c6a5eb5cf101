// id -> entry: open addressing with linear probing over 8-byte words, with deletion. A word holds 32 bits of the id's
// hash (which also say where its search begins), the entry's number + 1 in 30 bits and a counter of 2 bits; 0 is empty.
#pragma once
#include <cstdint>

namespace glt {

struct IdIndex {
  static constexpr uint64_t kNone = UINT64_MAX;
  static constexpr uint32_t kMostEntries = (1u << 30) - 1;

  uint64_t* words;
  uint64_t size;  // at least one more than the entries, so that every search ends

  static uint32_t tag(uint64_t word) { return uint32_t(word >> 32); }
  static uint32_t entry(uint64_t word) { return (uint32_t(word) >> 2) - 1; }
  static uint32_t counter(uint64_t word) { return uint32_t(word) & 3; }
  static uint64_t pack(uint32_t tag, uint32_t entry, uint32_t counter) {
    return uint64_t(tag) << 32 | (entry + 1) << 2 | counter;
  }

  uint64_t home(uint32_t tag) const { return uint64_t(tag) * size >> 32; }
  uint64_t after(uint64_t at) const { return at + 1 == size ? 0 : at + 1; }
  uint64_t steps(uint64_t from, uint64_t to) const { return to >= from ? to - from : to + size - from; }

  // Words are written under a lock, and read without it only to guess what to prefetch.
  uint64_t get(uint64_t at) const { return __atomic_load_n(words + at, __ATOMIC_RELAXED); }
  void set(uint64_t at, uint64_t word) const { __atomic_store_n(words + at, word, __ATOMIC_RELAXED); }

  void prefetch(uint32_t tag) const { __builtin_prefetch(words + home(tag), 1); }

  // Where the word of this tag lies for whose entry is_it(entry) holds, else kNone.
  template <class IsIt>
  uint64_t find(uint32_t wanted, const IsIt& is_it) const {
    for (uint64_t at = home(wanted);; at = after(at)) {
      const uint64_t word = get(at);
      if (!word) return kNone;
      if (tag(word) == wanted && is_it(entry(word))) return at;
    }
  }

  void add(uint32_t tag, uint32_t entry) const {
    uint64_t at = home(tag);
    while (get(at)) at = after(at);
    set(at, pack(tag, entry, 0));
  }

  // Words behind the hole move into it unless that is before their home.
  void erase(uint64_t hole) const {
    for (uint64_t at = after(hole);; at = after(at)) {
      const uint64_t word = get(at);
      if (!word) break;
      if (steps(home(tag(word)), at) < steps(hole, at)) continue;
      set(hole, word);
      hole = at;
    }
    set(hole, 0);
  }
};

}  // namespace glt
