// The one kernel whose threads wait for each other, with every thread a fiber: they stand in any order, a barrier lets them
// on when all have come, a warp's votes and shuffles are barriers too. A step is what a thread does up to its next wait.
//   g++ -std=c++17 -Wno-unknown-pragmas -fPIC -shared -Icuda -Icuda/include tests/native/emulate_warps.cpp
#include <glt/api.h>
#include <ucontext.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define GLT_SHARED(type, name) type& name = *reinterpret_cast<type*>(glt::block().shared)

namespace glt {

constexpr int kThreads = 256;

namespace {

struct Barrier {
  std::vector<size_t> waiting;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  int block, thread;
};

struct Block {
  alignas(16) char shared[256];
  Barrier all, warps[kThreads / 32];
  uint64_t slots[kThreads];
};

constexpr size_t kStack = 16384;
ucontext_t scheduler;
std::vector<Fiber> fibers;
std::vector<Block> blocks;
std::vector<size_t> runnable;
size_t current;

void stop() { swapcontext(&fibers[current].context, &scheduler); }

void step_aside() {
  runnable.push_back(current);
  stop();
}

void meet(Barrier& barrier, size_t threads) {
  barrier.waiting.push_back(current);
  if (barrier.waiting.size() == threads) {
    runnable.insert(runnable.end(), barrier.waiting.begin(), barrier.waiting.end());
    barrier.waiting.clear();
  }
  stop();
}

Block& block() { return blocks[fibers[current].block]; }

// What all lanes of the warp give.
std::vector<uint64_t> gather(uint64_t value) {
  const int thread = fibers[current].thread, warp = thread / 32;
  block().slots[thread] = value;
  meet(block().warps[warp], 32);
  const uint64_t* first = block().slots + 32 * warp;
  std::vector<uint64_t> values(first, first + 32);
  meet(block().warps[warp], 32);
  return values;
}

// Runs all threads of all blocks. False when some wait for what never comes.
bool run_blocks(int num_blocks, uint64_t seed, void (*start)()) {
  std::mt19937_64 random(seed);
  fibers.clear();
  fibers.resize(size_t(num_blocks) * kThreads);
  blocks.assign(num_blocks, Block());
  for (Block& b : blocks) std::memset(b.shared, 0xa5, sizeof b.shared);
  for (size_t f = 0; f < fibers.size(); ++f) {
    Fiber& fiber = fibers[f];
    fiber.stack.reset(new char[kStack]);
    fiber.block = int(f / kThreads), fiber.thread = int(f % kThreads);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, start, 0);
    runnable.push_back(f);
  }
  while (!runnable.empty()) {
    std::swap(runnable[random() % runnable.size()], runnable.back());
    current = runnable.back();
    runnable.pop_back();
    swapcontext(&scheduler, &fibers[current].context);
  }
  for (const Block& b : blocks) {
    if (!b.all.waiting.empty()) return false;
    for (const Barrier& warp : b.warps)
      if (!warp.waiting.empty()) return false;
  }
  return true;
}

}  // namespace

struct Atomic {
  static uint64_t read(const uint64_t* p) {
    step_aside();
    return *p;
  }
  static void write(uint64_t* p, uint64_t value) {
    step_aside();
    *p = value;
  }
};

}  // namespace glt

#define threadIdx (Index{unsigned(glt::fibers[glt::current].thread)})
struct Index {
  unsigned x;
};

static void __syncthreads() { glt::meet(glt::block().all, glt::kThreads); }
static unsigned __ballot_sync(unsigned, bool mine) {
  unsigned bits = 0;
  const auto all = glt::gather(mine);
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned(all[lane]) << lane;
  return bits;
}
static bool __any_sync(unsigned mask, bool mine) { return __ballot_sync(mask, mine) != 0; }
static int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
template <class T>
static T __shfl_sync(unsigned, T value, int lane) {
  return T(glt::gather(value)[lane]);
}
template <class T>
static T __shfl_up_sync(unsigned, T value, int step) {
  const int lane = threadIdx.x % 32;
  return T(glt::gather(value)[lane >= step ? lane - step : lane]);
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, int step) {
  return T(glt::gather(value)[(threadIdx.x % 32) ^ step]);
}
static unsigned long long atomicAdd(unsigned long long* p, unsigned long long value) {
  glt::step_aside();
  const auto before = *p;
  *p += value;
  return before;
}

#include "scan.cuh"

namespace {

struct Sums {
  int64_t n;
  const uint32_t* values;
  int64_t *before, *calls, *total;

  int64_t size() const { return n; }
  uint32_t value(int64_t i) const { return ++calls[0], values[i]; }
  void place(int64_t i, int64_t sum, uint32_t value) const {
    ++calls[1];
    before[i] = value == values[i] ? sum : -1;
  }
  void finish(int64_t sum) const {
    ++calls[2];
    *total = sum;
  }
};

Sums body;
uint64_t* state;

}  // namespace

// A scan of n <= bound values. before [n], total; calls [3]: of value, place and finish. GLT_BAD_ARG: it got stuck.
extern "C" GLT_API int32_t emulate_scan(uint64_t seed, int64_t bound, int64_t n, const uint32_t* values, int64_t* before,
                                        int64_t* total, int64_t* calls) {
  std::vector<uint64_t> words(glt::scan_words(bound));
  body = {n, values, before, calls, total};
  state = words.data();
  const auto start = [] { glt::run_scan(body, state); };
  return glt::run_blocks(int(glt::scan_tiles(bound)), seed, start) ? GLT_OK : GLT_BAD_ARG;
}
