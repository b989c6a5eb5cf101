// The device library without a device, for tests: the bodies of cuda/*.cu run on the host, in a random order of threads,
// with a garbage-filled shared memory, and with other threads let in before each step on memory that threads share.
//   g++ -std=c++17 -fPIC -shared -pthread -Icuda -Icuda/include tests/native/emulate.cpp
#include <glt/cuda.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "graph.h"
#include "scan.cuh"

namespace glt {

// How the next kernels run. seed: of all orders. threads: 1, or so many at once. nested: how many other bodies may
// start, and end, between two steps of one body; with several threads they yield instead.
struct Schedule {
  uint64_t seed = 0;
  int32_t threads = 1, nested = 0;
} schedule;

thread_local std::function<void()> let_others_in;

struct Atomic {
  static void pause() {
    if (let_others_in) let_others_in();
  }
  template <class Word>
  static Word read(const Word* p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
  }
  template <class Word>
  static void write(Word* p, Word value) {
    pause();
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
  }
  static uint64_t swap_if(uint64_t* p, uint64_t expected, uint64_t desired) {
    pause();
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
  }
  static void add(uint64_t* p, uint64_t value) {
    pause();
    __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
  }
  template <class Word>
  static void min(Word* p, Word value) {
    pause();
    for (Word seen = read(p); value < seen;)
      if (__atomic_compare_exchange_n(p, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
  }
};

inline std::vector<int64_t> shuffled(int64_t n, std::mt19937_64& random) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// body(order[k]) for all k: in this order, and now and then one inside another.
template <class Body>
void run_nested(const std::vector<int64_t>& order, const Body& body) {
  size_t next = 0;
  int32_t depth = 0;
  let_others_in = [&] {
    if (depth >= schedule.nested || next >= order.size()) return;
    ++depth;
    body(order[next++]);
    --depth;
  };
  while (next < order.size()) body(order[next++]);
  let_others_in = nullptr;
}

template <class Body>
void run_threads(const std::vector<int64_t>& order, const Body& body) {
  std::vector<std::thread> threads;
  for (size_t t = 0; t < size_t(schedule.threads); ++t)
    threads.emplace_back([&, t] {
      let_others_in = std::this_thread::yield;
      for (size_t k = t; k < order.size(); k += schedule.threads) body(order[k]);
      let_others_in = nullptr;
    });
  for (auto& thread : threads) thread.join();
}

template <class Body>
void run_scheduled(int64_t n, std::mt19937_64& random, const Body& body) {
  const auto order = shuffled(n, random);
  schedule.threads > 1 ? run_threads(order, body) : run_nested(order, body);
}

template <class Body>
int32_t for_each(int64_t n, const Body& body, void*, int64_t*) {
  if (n <= 0) return GLT_OK;
  std::mt19937_64 random(schedule.seed++);
  run_scheduled(n, random, body);
  return GLT_OK;
}

// All items are in the same stage at a time: who writes into another one's memory is found out.
template <int kLanes, class Body>
int32_t for_each_lanes(int64_t n, const Body& body, void*, int64_t*) {
  n = std::max<int64_t>(n, 0);
  std::mt19937_64 random(schedule.seed++);
  std::vector<uint32_t> shared(n * Body::kWords, 0xdeadbeef);
  std::vector<decltype(body.open(0, nullptr))> lanes;
  for (int64_t k = 0; k < n * kLanes; ++k) lanes.push_back(body.open(k / kLanes, &shared[k / kLanes * Body::kWords]));
  for (int64_t k : shuffled(n * kLanes, random)) body.first(lanes[k], uint32_t(k % kLanes), kLanes);
  for (int64_t k : shuffled(n * kLanes, random)) body.second(lanes[k], uint32_t(k % kLanes), kLanes);
  run_scheduled(n * kLanes, random, [&](int64_t k) { body.third(lanes[k], uint32_t(k % kLanes), kLanes); });
  return GLT_OK;
}

inline int32_t fill_bytes(void* p, int value, int64_t nbytes, void*, int64_t*) {
  if (nbytes > 0) std::memset(p, value, size_t(nbytes));
  return GLT_OK;
}

// As blocks might do it that come in any order and of any size: tiles of the items have their values taken one after
// the other, and now and then one of those whose sum before is known is placed.
template <class Body>
int32_t scan_each(int64_t bound, const Body& body, uint64_t* state, void*, int64_t* detail) {
  const int64_t n = body.size();
  for (int64_t w = 0; w < scan_words(bound); ++w)
    if (n > bound || state[w]++) return fail(detail, GLT_BAD_ARG, bound, n);  // not zero: it served another scan
  std::mt19937_64 random(schedule.seed++);
  const int64_t tile = 1 + int64_t(random() % 7), tiles = n ? (n - 1) / tile + 1 : 0;
  std::vector<uint32_t> values(n);
  std::vector<int64_t> before(n + 1), ready;
  std::vector<bool> done(tiles);
  int64_t known = 0;  // tiles before this one have their sums
  auto place_one = [&] {
    std::swap(ready[random() % ready.size()], ready.back());
    const int64_t t = ready.back();
    ready.pop_back();
    for (int64_t i : shuffled(std::min(tile, n - t * tile), random))
      body.place(t * tile + i, before[t * tile + i], values[t * tile + i]);
    if (t == tiles - 1) body.finish(before[n]);
  };
  for (int64_t t : shuffled(tiles, random)) {
    for (int64_t i : shuffled(std::min(tile, n - t * tile), random)) values[t * tile + i] = body.value(t * tile + i);
    for (done[t] = true; known < tiles && done[known]; ready.push_back(known++))
      for (int64_t i = known * tile; i < std::min(n, (known + 1) * tile); ++i) before[i + 1] = before[i] + values[i];
    while (!ready.empty() && random() % 2) place_one();
  }
  while (!ready.empty()) place_one();
  if (!tiles) body.finish(0);
  return GLT_OK;
}

}  // namespace glt

#include "aggregate.cu"
#include "assign.cu"
#include "decode.cu"
#include "gather.cu"
#include "induce.cu"
#include "khop.cu"
#include "pick.h"
#include "pick_lanes.h"
#include "rank.cu"
#include "relabel.cu"
#include "sample.cu"
#include "walk.cu"

int32_t glt_abi_version(void) { return GLT_ABI_VERSION; }
int32_t glt_cuda_device_count(int32_t* count, int64_t*) { return *count = 0, GLT_OK; }
int32_t glt_cuda_versions(int32_t* built, int32_t* driver, int64_t*) { return *built = *driver = 13000, GLT_OK; }
const char* glt_cuda_error_text(int32_t) { return "emulated"; }

namespace {
int32_t device_capability = 90, is_built_for_device = 1;
constexpr int64_t kNoKernelImage = 209;  // as in cudaError_t
}  // namespace

int32_t glt_cuda_capability(int32_t* capability, int64_t* detail) {
  *capability = device_capability;
  return is_built_for_device ? GLT_OK : glt::fail(detail, GLT_CUDA, kNoKernelImage);
}

// Registered host memory: the device would read it at the same address.
namespace {
std::mutex registering;
std::map<void*, int64_t> registered;
int64_t lockable = INT64_MAX;
enum { kOutOfMemory = 2, kAlreadyRegistered = 712, kNotRegistered = 713 };  // as in cudaError_t
}  // namespace

int32_t glt_cuda_host_register(void* address, int64_t nbytes, void** device_address, int64_t* detail) {
  const std::lock_guard<std::mutex> lock(registering);
  int64_t locked = nbytes;
  for (const auto& [_, size] : registered) locked += size;
  if (registered.count(address)) return glt::fail(detail, GLT_CUDA, kAlreadyRegistered);
  if (locked > lockable) return glt::fail(detail, GLT_CUDA, kOutOfMemory);
  registered[address] = nbytes;
  *device_address = address;
  return GLT_OK;
}

int32_t glt_cuda_host_unregister(void* address, int64_t* detail) {
  const std::lock_guard<std::mutex> lock(registering);
  return registered.erase(address) ? GLT_OK : glt::fail(detail, GLT_CUDA, kNotRegistered);
}

extern "C" {

GLT_API int32_t emulate_device(int32_t capability, int32_t is_built_for) {
  device_capability = capability, is_built_for_device = is_built_for;
  return GLT_OK;
}

GLT_API int32_t emulate_lockable(int64_t nbytes) {  // how much host memory can be registered
  lockable = nbytes;
  return GLT_OK;
}

GLT_API int32_t emulate_schedule(uint64_t seed, int32_t threads, int32_t nested) {
  glt::schedule = {seed, threads, nested};
  return GLT_OK;
}

// Enters ids in a table of words that it empties; slots [n]. Orders are positions.
GLT_API int32_t emulate_enter(uint64_t* table, int64_t num_slots, const int64_t* ids, int64_t n, uint32_t* slots) {
  std::fill(table, table + num_slots, glt::HashedLids::kEmpty);
  const glt::HashedLids lids{table, uint32_t(num_slots - 1), 64 - __builtin_ctzll(uint64_t(num_slots))};
  return glt::for_each(n, [&](int64_t i) { slots[i] = lids.enter(ids[i], uint32_t(i)); }, nullptr, nullptr);
}

// first [lanes]: the word of a row at this address that each of its lanes begins with.
GLT_API int32_t emulate_lanes(uint64_t address, uint32_t word_bytes, uint32_t lanes, uint32_t* first) {
  for (uint32_t k = 0; k < lanes; ++k) first[k] = glt::first_word(reinterpret_cast<const char*>(address), word_bytes, k, lanes);
  return GLT_OK;
}

// The same picks by the host's way, out, and by the lanes' way, lanes_out; each [fanout], fanout < degree unless replace.
GLT_API int32_t emulate_picks(uint64_t stream, uint32_t degree, uint32_t fanout, int32_t replace, uint32_t* out,
                              uint32_t* lanes_out) {
  (replace ? glt::pick_repeated : glt::pick_distinct)(stream, degree, fanout, out);
  std::vector<uint32_t> drawn(fanout), picks(fanout);
  const uint32_t first = degree - fanout;
  for (uint32_t i = 0; i < fanout; ++i) drawn[i] = glt::draw(stream, i, replace ? degree : first + i + 1);
  for (uint32_t i = 0; i < fanout; ++i)
    picks[i] = !replace && glt::is_taken(drawn.data(), i, first) ? first + i : drawn[i];
  for (uint32_t i = 0; i < fanout; ++i) lanes_out[glt::rank_of(picks.data(), fanout, i)] = picks[i];
  return GLT_OK;
}

}  // extern "C"
