// A lock of 4 bytes for sections of less than a microsecond. Its memory is zeroed by whoever owns it.
#pragma once
#include <sched.h>

#include <cstdint>

namespace glt {

class Holding {
 public:
  explicit Holding(uint32_t& lock) : lock_(lock) {
    for (int tries = 1; __atomic_exchange_n(&lock_, 1, __ATOMIC_ACQUIRE); ++tries)
      while (__atomic_load_n(&lock_, __ATOMIC_RELAXED))
        if (++tries > kSpins) sched_yield();  // the holder may wait for this very core
  }
  ~Holding() { __atomic_store_n(&lock_, 0, __ATOMIC_RELEASE); }
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

 private:
  static constexpr int kSpins = 64;
  uint32_t& lock_;
};

}  // namespace glt
