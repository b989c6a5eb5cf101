// A CUDA device on the CPU, for kernels that were translated from PTX. Each CUDA thread is a fiber; one runs at a time, and
// may be held at every access that others can see, at every barrier, shuffle and vote. What a device would refuse, or may
// get wrong on another day, is a finding: an access outside the memory it was given, one that is not aligned, a mask that
// names the wrong lanes, a barrier that not all reach, a race.
#pragma once
#include <stdint.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace simt {

struct Block;
struct Fiber;
struct Thread;

struct Site {
  const char *where, *text;  // line of the source, instruction
};

struct Parameter {
  uint32_t offset, bytes;
};

struct Kernel {
  const char *name, *fault;  // fault: of a broken copy, which one; else ""
  void (*run)(Thread&, const char* params);
  uint32_t shared_bytes, max_threads;
  std::vector<Parameter> params;
  const Site* sites;
};

// Kernels enter themselves when the library is loaded.
struct Enter {
  explicit Enter(std::vector<Kernel> kernels);
};

enum class Wait : uint8_t { none, block, lanes, shuffle, vote };
enum class Shuffle : uint8_t { up, down, bfly, idx };

struct Thread {
  uint32_t index, block, num_threads, num_blocks;
  const Kernel* kernel;
  const char* params;
  Block* home;
  Fiber* fiber;
  bool done;
  // what it waits for, and what it brings to a shuffle or a vote
  Wait wait;
  int site;
  uint32_t mask, value, lane, clamp, got;
  Shuffle mode;
  bool in_range;
  // what it knows of the lanes of its warp, and how many barriers of the block it has passed
  uint32_t clock[32], barriers;

  uint32_t warp() const { return index / 32 * 32; }
  uint32_t lane_of_warp() const { return index % 32; }
};

struct Access {
  uint64_t address;
  uint32_t bytes;
  bool write, strong;  // strong: atomic or volatile
  int site;
};

void touch(Thread&, const Access&);  // checks it, and lets other threads run first now and then
uint64_t shared_at(Thread&, uint64_t offset);
void wait_for_block(Thread&, int site);
void wait_for_lanes(Thread&, uint32_t mask, int site);
uint32_t shuffle(Thread&, Shuffle mode, uint32_t value, uint32_t lane, uint32_t clamp, uint32_t mask, bool& in_range, int site);
uint32_t ballot(Thread&, bool value, uint32_t mask, int site);

template <class T, int n>
void load(Thread& t, uint64_t address, T (&out)[n], bool strong, int site) {
  touch(t, {address, sizeof out, false, strong, site});
  std::memcpy(out, reinterpret_cast<const void*>(address), sizeof out);
}

template <class T, int n>
void store(Thread& t, uint64_t address, const T (&values)[n], bool strong, int site) {
  touch(t, {address, sizeof values, true, strong, site});
  std::memcpy(reinterpret_cast<void*>(address), values, sizeof values);
}

template <class T, class Change>
T atomic(Thread& t, uint64_t address, int site, const Change& change) {
  touch(t, {address, sizeof(T), true, true, site});
  T old;
  std::memcpy(&old, reinterpret_cast<const void*>(address), sizeof old);
  const T next = change(old);
  std::memcpy(reinterpret_cast<void*>(address), &next, sizeof next);
  return old;
}
template <class T>
T atomic_cas(Thread& t, uint64_t address, int site, T expected, T desired) {
  return atomic<T>(t, address, site, [&](T old) { return old == expected ? desired : old; });
}
template <class T>
T atomic_add(Thread& t, uint64_t address, int site, T value) {
  return atomic<T>(t, address, site, [&](T old) { return T(old + value); });
}
template <class T>
T atomic_min(Thread& t, uint64_t address, int site, T value) {
  return atomic<T>(t, address, site, [&](T old) { return std::min(old, value); });
}
template <class T>
T atomic_max(Thread& t, uint64_t address, int site, T value) {
  return atomic<T>(t, address, site, [&](T old) { return std::max(old, value); });
}
template <class T>
T atomic_exch(Thread& t, uint64_t address, int site, T value) {
  return atomic<T>(t, address, site, [&](T) { return value; });
}

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double as_double(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint64_t as_bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline uint32_t reversed_bits(uint32_t word) {
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i) out |= (word >> i & 1) << (31 - i);
  return out;
}

// `bits` with those of `field` in its places [first, first + count); both numbers are bytes.
template <class T>
T insert_bits(T field, T bits, uint32_t first, uint32_t count) {
  first &= 255, count &= 255;
  for (uint32_t i = 0; i < count && first + i < 8 * sizeof(T); ++i)
    bits = (bits & ~(T(1) << (first + i))) | ((field >> i & 1) << (first + i));
  return bits;
}

// The places [first, first + count) of `bits`, extended by the sign of the last where the type has one.
template <class T>
T extract_bits(T bits, uint32_t first, uint32_t count) {
  first &= 255, count &= 255;
  constexpr uint32_t kBits = 8 * sizeof(T);
  auto bit = [&](uint32_t i) { return uint64_t(bits) >> std::min(i, kBits - 1) & 1; };
  const uint64_t sign = T(-1) < T(0) && count ? bit(std::min(first + count - 1, kBits - 1)) : 0;
  uint64_t out = 0;
  for (uint32_t i = 0; i < kBits; ++i) out |= (i < count && first + i < kBits ? bit(first + i) : sign) << i;
  return T(out);
}

// Four bytes of the eight of (high, low); a selector's bit 3 stands for the sign of the byte alone.
inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selectors) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> (4 * i) & 15, byte = uint32_t(bytes >> (8 * (selector & 7))) & 255;
    out |= (selector & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return out;
}

}  // namespace simt
