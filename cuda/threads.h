// Fork and join over a range. Threads live for one call: no pool that outlives it, nothing global, safe after fork.
#pragma once
#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace glt {

// Calls body(begin, end, index) on at most `threads` slices of [0, n), each of at least `grain` items.
template <class Body>
void parallel(int64_t n, int32_t threads, int64_t grain, Body body) {
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, n / std::max<int64_t>(1, grain)));
  if (parts == 1) return body(int64_t(0), n, 0);
  std::vector<std::thread> others;
  others.reserve(parts - 1);
  for (int64_t t = 1; t < parts; ++t)
    others.emplace_back([=, &body] { body(n * t / parts, n * (t + 1) / parts, int(t)); });
  body(int64_t(0), n / parts, 0);
  for (auto& o : others) o.join();
}

}  // namespace glt
