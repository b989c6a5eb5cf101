// Running a grid: which thread runs when, barriers, shuffles and votes.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <memory>
#include <random>

#include "device.h"

namespace simt {

Schedule schedule;

// A stack that runs one thread after the other.
struct Fiber {
  jmp_buf at;
  ucontext_t context;
  Thread* thread = nullptr;
  bool started = false;
};

struct Block {
  std::vector<Thread> threads;
  uint32_t left, at_barrier = 0;
  std::vector<char> shared;
  uint64_t shared_begin() const { return (reinterpret_cast<uint64_t>(shared.data()) + 15) / 16 * 16; }
};

namespace {

constexpr size_t kStack = 128 << 10;  // a kernel's registers are locals; untouched pages cost nothing

std::mt19937_64 randoms;
std::vector<Thread*> runnable;
std::vector<Fiber*> idle;
jmp_buf scheduler;
Fiber* starting;
bool failed;

__attribute__((noinline)) void stop(Thread& t) {
  if (!_setjmp(t.fiber->at)) _longjmp(scheduler, 1);
}

void wake(Thread& t) {
  t.wait = Wait::none;
  runnable.push_back(&t);
}

void step_aside(Thread& t) {
  runnable.push_back(&t);
  stop(t);
}

void leave(Thread& t) {
  Block& block = *t.home;
  t.done = true;
  --block.left;
  if (block.at_barrier) fail(t, 0, "the thread leaves while others of its block wait at a barrier");
  for (uint32_t k = t.warp(); k < std::min(t.warp() + 32, t.num_threads); ++k) {
    const Thread& other = block.threads[k];
    if (!other.done && other.wait > Wait::block && other.mask >> t.lane_of_warp() & 1)
      fail(other, other.site, "waits for a lane that has left");
  }
}

void live_on_fiber() {
  for (Fiber* self = starting;;) {
    Thread& t = *self->thread;
    t.kernel->run(t, t.params);
    leave(t);
    stop(t);  // until it has another thread
  }
}

Fiber* free_fiber() {
  if (idle.empty()) {
    auto* fiber = new Fiber;
    void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack, fiber->context.uc_stack.ss_size = kStack;
    idle.push_back(fiber);
  }
  Fiber* fiber = idle.back();
  idle.pop_back();
  return fiber;
}

// Runs a thread up to its next stop.
__attribute__((noinline)) void resume(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true, starting = &fiber;
  makecontext(&fiber.context, live_on_fiber, 0);
  setcontext(&fiber.context);
}

// One that runs: blocks come in ascending, descending or random order, a few at a time.
class Grid {
 public:
  Grid(const Kernel& kernel, uint32_t num_blocks, uint32_t num_threads, const char* params)
      : kernel_(kernel), num_threads_(num_threads), params_(params), order_(num_blocks) {
    for (uint32_t k = 0; k < num_blocks; ++k) order_[k] = k;
    const int order = int(randoms() % 3);
    if (order == 1) std::reverse(order_.begin(), order_.end());
    if (order == 2) std::shuffle(order_.begin(), order_.end(), randoms);
    constexpr uint32_t kResident[] = {1, 2, 3, 5, 8};
    resident_ = kResident[randoms() % 5], policy_ = int(randoms() % 4);
  }

  bool run() {
    while (!failed) {
      while (live_.size() < resident_ && next_ < order_.size()) start();
      if (live_.empty()) return true;
      if (runnable.empty()) tell_deadlock();
      else advance(*take());
    }
    for (auto& block : live_)
      for (Thread& t : block->threads) t.fiber->started = false, release(t);  // whatever they were at is dropped
    return false;
  }

 private:
  void start() {
    auto block = std::make_unique<Block>();
    block->left = num_threads_;
    block->threads.resize(num_threads_);
    block->shared.resize(kernel_.shared_bytes + 16);
    std::memset(block->shared.data(), int(randoms()), block->shared.size());
    for (uint32_t k = 0; k < num_threads_; ++k) {
      Thread& t = block->threads[k];
      t = Thread{};
      t.index = k, t.block = order_[next_], t.num_threads = num_threads_, t.num_blocks = uint32_t(order_.size());
      t.kernel = &kernel_, t.params = params_, t.home = block.get(), t.fiber = free_fiber();
      t.fiber->thread = &t;
      runnable.push_back(&t);
    }
    ++next_;
    live_.push_back(std::move(block));
  }

  // By one of four policies: any, in turn, the one that could run last or first of all, with an exception now and then.
  Thread* take() {
    const size_t n = runnable.size(), any = randoms() % n;
    const bool exception = randoms() % 16 == 0;
    const size_t at = policy_ == 0 || exception ? any : policy_ == 1 ? turn_++ % n : policy_ == 2 ? n - 1 : 0;
    std::swap(runnable[at], runnable.back());
    Thread* t = runnable.back();
    runnable.pop_back();
    return t;
  }

  void advance(Thread& t) {
    resume(*t.fiber);
    if (failed || !t.done || t.home->left) return;
    const auto block = std::find_if(live_.begin(), live_.end(), [&](const auto& b) { return b.get() == t.home; });
    for (Thread& each : (*block)->threads) release(each);
    if (schedule.races) forget_accesses((*block)->shared_begin(), kernel_.shared_bytes);
    live_.erase(block);
  }

  void release(Thread& t) { idle.push_back(t.fiber); }

  void tell_deadlock() {
    for (const auto& block : live_)
      for (const Thread& t : block->threads)
        if (!t.done) {
          note("deadlock: waits for ever: " + place(t, t.site));
          failed = true;
          return;
        }
  }

  const Kernel& kernel_;
  const uint32_t num_threads_;
  const char* params_;
  std::vector<uint32_t> order_;
  std::vector<std::unique_ptr<Block>> live_;
  uint32_t resident_ = 1, next_ = 0;
  int policy_ = 0;
  size_t turn_ = 0;
};

// Whether all lanes of the mask wait at the same primitive.
bool all_here(Thread& t) {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if (!(t.mask >> lane & 1)) continue;
    if (t.warp() + lane >= t.num_threads) fail(t, t.site, "the mask names a lane that does not exist");
    const Thread& other = t.home->threads[t.warp() + lane];
    if (other.done) fail(t, t.site, "the mask names a lane that has left");
    if (other.wait == Wait::none || other.wait == Wait::block) return false;
    if (other.wait != t.wait || other.mask != t.mask) fail(t, t.site, "lanes of one mask wait for different things");
    if (t.wait != Wait::lanes && other.site != t.site) fail(t, t.site, "lanes of one mask wait in different instructions");
  }
  return true;
}

void arrive(Thread& t, Wait wait, uint32_t mask, int site) {
  t.wait = wait, t.mask = mask, t.site = site;
  if (!(mask >> t.lane_of_warp() & 1)) fail(t, site, "a lane is not in its own mask");
}

template <class Each>
void each_lane(Thread& t, const Each& each) {
  const uint32_t mask = t.mask;
  for (uint32_t lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) each(t.home->threads[t.warp() + lane], lane);
}

// What a lane gets of a shuffle, as PTX ISA has it.
void shuffle_one(Thread& t, uint32_t lane) {
  const uint32_t segment = t.clamp >> 8 & 31, by = t.lane & 31;
  const uint32_t first = lane & segment, last = first | (t.clamp & ~segment & 31);
  int64_t from = 0;
  switch (t.mode) {
    case Shuffle::up: from = int64_t(lane) - by, t.in_range = from >= int64_t(last); break;
    case Shuffle::down: from = lane + by, t.in_range = from <= last; break;
    case Shuffle::bfly: from = lane ^ by, t.in_range = from <= last; break;
    case Shuffle::idx: from = first | (by & ~segment & 31), t.in_range = from <= last; break;
  }
  if (!t.in_range) from = lane;
  if (!(t.mask >> from & 1)) fail(t, t.site, "a shuffle reads a lane outside of its mask");
  t.got = t.home->threads[t.warp() + from].value;
}

}  // namespace

uint64_t shared_at(Thread& t, uint64_t offset) { return t.home->shared_begin() + offset; }

void touch(Thread& t, const Access& access) {
  const uint64_t begin = t.home->shared_begin(), end = access.address + access.bytes;
  if (access.address % access.bytes) fail(t, access.site, "an access that is not aligned");
  const bool is_shared = access.address >= begin && end <= begin + t.kernel->shared_bytes;
  if (!is_shared && !may_touch(access.address, access.bytes)) fail(t, access.site, "an access outside of the memory it was given");
  if (access.strong || (schedule.fine && randoms() % 8 == 0)) step_aside(t);
  if (schedule.races) look_for_race(t, access);
}

void wait_for_block(Thread& t, int site) {
  Block& block = *t.home;
  t.wait = Wait::block, t.site = site;
  if (block.left != block.threads.size()) fail(t, site, "a barrier after a thread of its block has left");
  if (++block.at_barrier == block.left) {
    block.at_barrier = 0;
    for (Thread& each : block.threads) ++each.barriers, wake(each);
  }
  stop(t);
}

void wait_for_lanes(Thread& t, uint32_t mask, int site) {
  arrive(t, Wait::lanes, mask, site);
  if (all_here(t)) {
    uint32_t known[32] = {};
    each_lane(t, [&](Thread& other, uint32_t lane) {
      ++other.clock[lane];
      for (int k = 0; k < 32; ++k) known[k] = std::max(known[k], other.clock[k]);
    });
    each_lane(t, [&](Thread& other, uint32_t) {
      std::memcpy(other.clock, known, sizeof known);
      wake(other);
    });
  }
  stop(t);
}

uint32_t shuffle(Thread& t, Shuffle mode, uint32_t value, uint32_t lane, uint32_t clamp, uint32_t mask, bool& in_range, int site) {
  t.mode = mode, t.value = value, t.lane = lane, t.clamp = clamp;
  arrive(t, Wait::shuffle, mask, site);
  if (all_here(t)) {
    each_lane(t, shuffle_one);
    each_lane(t, [](Thread& other, uint32_t) { wake(other); });
  }
  stop(t);
  in_range = t.in_range;
  return t.got;
}

uint32_t ballot(Thread& t, bool value, uint32_t mask, int site) {
  t.value = value;
  arrive(t, Wait::vote, mask, site);
  if (all_here(t)) {
    uint32_t votes = 0;
    each_lane(t, [&](Thread& other, uint32_t lane) { votes |= other.value << lane; });
    each_lane(t, [&](Thread& other, uint32_t) { other.got = votes, wake(other); });
  }
  stop(t);
  return t.got;
}

void fail(const Thread& t, int site, const char* what) {
  note(std::string(what) + ": " + place(t, site));
  failed = true;
  _longjmp(scheduler, 1);
}

bool run_grid(const Kernel& kernel, uint32_t num_blocks, uint32_t num_threads, const char* params) {
  randoms.seed(schedule.seed = schedule.seed * 6364136223846793005u + 1442695040888963407u);
  runnable.clear();
  failed = false;
  begin_races();
  return Grid(kernel, num_blocks, num_threads, params).run();
}

}  // namespace simt
