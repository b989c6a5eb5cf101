// Fork and join over a range. Threads live for one call: no pool that outlives it, nothing global, safe after fork.
#pragma once
#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace glt {

// Threads that are joined whatever happens: one that is destroyed while it runs ends the process.
class Joined {
 public:
  explicit Joined(int64_t most) { threads_.reserve(most); }
  ~Joined() { join(); }
  template <class Body>
  void start(const Body& body) {
    threads_.emplace_back(body);
  }
  void join() {
    for (auto& t : threads_) t.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

// Calls body(begin, end, index) on at most `threads` slices of [0, n), each of at least `grain` items. An exception of a
// slice is thrown here, when all have ended.
template <class Body>
void parallel(int64_t n, int32_t threads, int64_t grain, Body body) {
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, n / std::max<int64_t>(1, grain)));
  if (parts == 1) return body(int64_t(0), n, 0);
  std::vector<std::exception_ptr> thrown(parts);
  {
    Joined others(parts - 1);
    for (int64_t t = 1; t < parts; ++t)
      others.start([=, &body, &thrown] {
        try {
          body(n * t / parts, n * (t + 1) / parts, int(t));
        } catch (...) {
          thrown[t] = std::current_exception();
        }
      });
    body(int64_t(0), n / parts, 0);
  }
  for (const auto& t : thrown)
    if (t) std::rethrow_exception(t);
}

}  // namespace glt
