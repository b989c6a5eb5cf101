// Assigning nodes to parts; see glt/assign.h. Host only.
#include <glt/assign.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "graph.h"
#include "guard.h"
#include "threads.h"

namespace {

using glt::fail;

constexpr int64_t kFewLabels = 64;  // at most as many are counted by numbers of 8 bits, and with a bit each
constexpr int64_t kAhead = 24;  // labels of neighbours miss the cache; prefetched this far ahead

template <class Id>
const Id* neighbors_of(const glt_rows& rows) {
  return static_cast<const Id*>(rows.neighbors);
}

// Always inlined, as `glt::prefetch`: without it a row takes twice as long.
template <class Id, class Label>
__attribute__((always_inline)) inline void prefetch_label(const glt_rows& rows, const Id* neighbors, int64_t at,
                                                          const Label* labels) {
  if (at + kAhead < rows.indptr[rows.num_rows]) glt::prefetch(labels + neighbors[at + kAhead]);
}

// The loads of all labels in C constraints, and the labels below their limits.
class Loads {
 public:
  Loads(const int32_t* weights, int32_t constraints, int64_t* loads, const int64_t* capacity)
      : weights_(weights), c_(constraints), loads_(loads), capacity_(capacity) {}

  bool has_room(int64_t label, int64_t node) const {
    for (int32_t c = 0; c < c_; ++c)
      if (weight(node, c) && load(label, c) + weight(node, c) > capacity_[c]) return false;
    return true;
  }

  bool is_over(int64_t label, int64_t node) const {
    for (int32_t c = 0; c < c_; ++c)
      if (weight(node, c) && load(label, c) > capacity_[c]) return true;
    return false;
  }

  void move(int64_t node, int64_t from, int64_t to) {
    for (int32_t c = 0; c < c_; ++c) {
      if (from >= 0) loads_[from * c_ + c] -= weight(node, c);
      loads_[to * c_ + c] += weight(node, c);
    }
  }

  int64_t load(int64_t label, int32_t c) const { return loads_[label * c_ + c]; }
  void prefetch(int64_t label) const { glt::prefetch(loads_ + std::max<int64_t>(label, 0) * c_); }

 private:
  int64_t weight(int64_t node, int32_t c) const { return weights_[node * c_ + c]; }

  const int32_t* weights_;
  const int32_t c_;
  int64_t* loads_;
  const int64_t* capacity_;
};

// A label among the neighbours of a row, and how often it occurs.
struct Seen {
  int32_t label;
  int32_t count;
};

// Counts the labels among the neighbours of a row. It changes only its own memory, so several may count at once.
// Label: int32_t, or int8_t where there are few labels.
template <class Id, class Label>
class alignas(128) Tally {  // those of two threads share no cache line
 public:
  Tally(const glt_rows& rows, const Label* labels, int64_t num_labels)
      : rows_(rows), labels_(labels), num_labels_(num_labels) {}

  // Writes the labels of a row that occur more often than `own`, in the order in which they occur, to `seen`, which is as long as
  // the row, and their number to `*found`: -1 if a neighbour is a node in [changing, node of the row). own: -1 for all labels.
  int32_t count(int64_t row, int64_t changing, int32_t own, Seen* seen, int64_t* found, int64_t* detail) {
    const Id* neighbors = neighbors_of<Id>(rows_);
    const int64_t begin = rows_.indptr[row], end = rows_.indptr[row + 1];
    const uint64_t behind = uint64_t(rows_.first + row - changing);
    Few few;
    int32_t n = 0;
    if (!kFew) clear(end - begin);
    *found = -1;
    for (int64_t e = begin; e < end; ++e) {
      const int64_t id = neighbors[e];
      if (uint64_t(id) >= uint64_t(rows_.num_nodes)) return fail(detail, GLT_BAD_ID, row, id);
      if (uint64_t(id - changing) < behind) return GLT_OK;
      prefetch_label(rows_, neighbors, e, labels_);
      const int32_t label = labels_[id];
      if (label < 0) continue;
      if (kFew) {
        if (few.is_new(label)) seen[n++].label = label;
        few.add(label, e);
        continue;
      }
      if (label >= num_labels_) return fail(detail, GLT_BAD_ARG, row, label);
      int32_t& slot = find(label, seen);
      if (!slot) seen[n] = {label, 0}, slot = ++n;
      ++seen[slot - 1].count;
    }
    for (int32_t i = 0; kFew && i < n; ++i) seen[i].count = few.count(seen[i].label);
    *found = own < 0 ? n : more_than(own, seen, n);
    return GLT_OK;
  }

 private:
  // Another core reads the rest, which is little once most nodes have the label of most of their neighbours.
  static int32_t more_than(int32_t own, Seen* seen, int32_t n) {
    int32_t least = 0, kept = 0;
    for (int32_t i = 0; i < n; ++i) least += seen[i].label == own ? seen[i].count : 0;
    for (int32_t i = 0; i < n; ++i) {
      seen[kept] = seen[i];
      kept += seen[i].count > least;
    }
    return kept;
  }

  static constexpr bool kFew = sizeof(Label) == 1;

  // The counts of few labels. Each has several: one alone would wait for itself where neighbours have the same label.
  struct Few {
    uint64_t seen = 0;
    int32_t counts[4][kFewLabels];

    bool is_new(int32_t label) {
      const uint64_t bit = uint64_t(1) << label;
      if (seen & bit) return false;
      seen |= bit;
      for (auto& each : counts) each[label] = 0;
      return true;
    }
    void add(int32_t label, int64_t e) { ++counts[e % 4][label]; }
    int32_t count(int32_t label) const {
      return counts[0][label] + counts[1][label] + counts[2][label] + counts[3][label];
    }
  };

  void clear(int64_t degree) {
    const int64_t most = std::max<int64_t>(1, std::min(degree, num_labels_));
    const int bits = 65 - __builtin_clzll(uint64_t(most));  // half of the slots stay free
    shift_ = 64 - bits, mask_ = (uint64_t(1) << bits) - 1;
    if (slots_.size() <= mask_) slots_.resize(std::max<size_t>(mask_ + 1, 64));
    std::fill_n(slots_.begin(), mask_ + 1, 0);
  }

  // The slot of a label: one more than its position in `seen`; 0 if it was not seen yet.
  int32_t& find(int32_t label, const Seen* seen) {
    uint64_t at = uint64_t(label) * 0x9E3779B97F4A7C15ull >> shift_;
    while (slots_[at] && seen[slots_[at] - 1].label != label) at = (at + 1) & mask_;
    return slots_[at];
  }

  const glt_rows& rows_;
  const Label* labels_;
  const int64_t num_labels_;
  std::vector<int32_t> slots_;
  int shift_ = 0;
  uint64_t mask_ = 0;
};

// Rows whose labels are counted before the first of their nodes moves.
struct Window {
  int64_t begin = 0, end = 0;
  std::atomic<int64_t> next{0};  // the first row that no thread has taken
  std::vector<int64_t> found;    // of each row, the number of labels; -1: not counted
  std::vector<Seen> seen;        // as long as the rows: the labels of those that were taken together, one row after the other
};

// Windows for threads that live as long as a pass: to start one takes as long as to count some hundred rows.
class Turns {
 public:
  // Ends the turns, whatever happens.
  class End {
   public:
    explicit End(Turns& turns) : turns_(turns) {}
    ~End() { turns_.publish(kEnded); }

   private:
    Turns& turns_;
  };

  // Lets threads count the rows of a window. changing: as of `Pass::count`.
  void begin(Window& window, int64_t changing) {
    window_ = &window, changing_ = changing;
    publish(step_ + 1);
  }

  // Waits until none counts any more. One that has not begun yet, since other processes have its core, is not waited for.
  void close() {
    step_ = step_ + 1;
    while (active_) std::this_thread::yield();
  }

  // Calls count(window, changing) in each turn, until the end.
  template <class Count>
  void follow(const Count& count) {
    for (uint64_t step = 0; wait_for_next(step), step != kEnded;) {
      const Held active(active_);
      if (step_ == step) count(*window_, changing_);
    }
  }

 private:
  static constexpr uint64_t kEnded = ~uint64_t(0);
  static constexpr int kSpins = 50;  // some 20 microseconds: less than it takes to sleep and wake

  struct Held {
    explicit Held(std::atomic<int32_t>& n) : number(n) { ++number; }
    ~Held() { --number; }
    std::atomic<int32_t>& number;
  };

  void publish(uint64_t step) {
    step_ = step;
    if (!sleeping_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }

  void wait_for_next(uint64_t& step) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (is_next(step)) return;
      std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const Held sleeps(sleeping_);
    changed_.wait(lock, [&] { return is_next(step); });
  }

  // Whether another turn than `step` is open, which is then `step`.
  bool is_next(uint64_t& step) const {
    const uint64_t now = step_;
    if (now % 2 == 0 || now == step) return false;
    step = now;
    return true;
  }

  std::atomic<uint64_t> step_{0};  // odd while a window is open, and at the end
  std::atomic<int32_t> active_{0}, sleeping_{0};
  Window* window_ = nullptr;
  int64_t changing_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Moves nodes, one after the other, in windows of rows. While the nodes of one move, other threads count the labels of the next,
// and so does this one when it is done. A row with a neighbour that may move in the meantime is counted when its turn comes, so
// threads change nothing but the time.
template <class Id, class Label>
class Pass {
 public:
  // counted: the labels once more, as they are counted; or the same.
  Pass(const glt_rows& rows, int32_t* labels, Label* counted, int64_t num_labels, const Loads& loads, bool everywhere,
       int32_t threads, int64_t* detail)
      : rows_(rows), labels_(labels), counted_(counted), num_labels_(num_labels), loads_(loads), everywhere_(everywhere),
        detail_(detail), tallies_(std::max(1, threads), Tally<Id, Label>(rows, counted, num_labels)) {}

  int32_t run(int64_t* moved) {
    *moved = 0;
    int64_t longest = 0;
    for (int64_t row = 0; row < rows_.num_rows; ++row) longest = std::max(longest, rows_.indptr[row + 1] - rows_.indptr[row]);
    own_.resize(longest);
    const int32_t threads = int32_t(tallies_.size());
    return threads == 1 ? move_all(moved) : move_windows(threads, moved);
  }

 private:
  int32_t move_all(int64_t* moved) {
    for (int64_t row = 0; row < rows_.num_rows; ++row)
      if (const int32_t status = place(row, nullptr, -1, moved)) return status;
    return GLT_OK;
  }

  int32_t move_windows(int32_t threads, int64_t* moved) {
    Window windows[2], *now = &windows[0], *next = &windows[1];
    Turns turns;
    std::vector<std::exception_ptr> thrown(threads);
    int32_t status = GLT_OK;
    {
      glt::Joined others(threads - 1);
      const Turns::End end(turns);  // before they are joined, also where one cannot be started
      for (int32_t t = 1; t < threads; ++t)
        others.start([this, t, &turns, &thrown] {
          try {
            turns.follow([&](Window& window, int64_t changing) { count(window, changing, tallies_[t]); });
          } catch (...) {
            thrown[t] = std::current_exception();
          }
        });
      for (open(*now, 0); now->begin < rows_.num_rows && !status; std::swap(now, next)) {
        open(*next, now->end);
        turns.begin(*next, now->begin);
        status = move(*now, moved);
        if (!status) count(*next, now->begin, tallies_[0]);
        turns.close();
      }
    }
    for (const auto& t : thrown)
      if (t) std::rethrow_exception(t);
    return status;
  }

  // Makes a window of the rows from `begin` on.
  void open(Window& window, int64_t begin) const {
    const int64_t* from = rows_.indptr + begin;
    // Of nodes that are numbered at random, few have a neighbour in the same window.
    const int64_t most = std::clamp(rows_.num_nodes / 16, kLeastEdges, 2 * kLeastEdges);
    const int64_t* last = std::upper_bound(from, rows_.indptr + rows_.num_rows + 1, *from + most) - 1;
    if (begin < rows_.num_rows) last = std::max(last, from + 1);
    window.begin = begin, window.end = last - rows_.indptr, window.next = 0;
    window.found.assign(last - from, -1);
    if (const size_t edges = *last - *from; edges > window.seen.size()) window.seen.resize(edges);
  }

  // Where the labels of the rows that are taken with this first one begin. Without gaps: another core reads them.
  Seen* seen_from(Window& window, int64_t row) const {
    return window.seen.data() + (rows_.indptr[row] - rows_.indptr[window.begin]);
  }

  // Counts rows that no other thread has taken. changing: the first row whose node may move before these.
  void count(Window& window, int64_t changing, Tally<Id, Label>& tally) const {
    int64_t detail[4];  // a bad row is found again by `place`
    for (int64_t begin; (begin = window.begin + window.next.fetch_add(kTaken)) < window.end;) {
      Seen* seen = seen_from(window, begin);
      for (int64_t row = begin; row < std::min(begin + kTaken, window.end); ++row) {
        int64_t& found = window.found[row - window.begin];
        tally.count(row, rows_.first + changing, labels_[rows_.first + row], seen, &found, detail);
        seen += std::max<int64_t>(found, 0);
      }
    }
  }

  int32_t move(Window& window, int64_t* moved) {
    Seen* seen = nullptr;
    for (int64_t row = window.begin; row < window.end; ++row) {
      const int64_t at = row - window.begin, found = window.found[at];
      if (at % kTaken == 0) seen = seen_from(window, row);
      if (const int32_t status = place(row, seen, found, moved)) return status;
      seen += std::max<int64_t>(found, 0);
    }
    return GLT_OK;
  }

  // seen, n: the labels of the row's neighbours that occur more often than its own; -1: they are not counted yet.
  int32_t place(int64_t row, Seen* seen, int64_t n, int64_t* moved) {
    const int64_t node = rows_.first + row;
    const int32_t own = labels_[node];
    if (own >= num_labels_) return fail(detail_, GLT_BAD_ARG, row, own);
    if (row + kRowsAhead < rows_.num_rows) loads_.prefetch(labels_[node + kRowsAhead]);
    const bool must_leave = own < 0 || loads_.is_over(own, node);
    if (n < 0 || (must_leave && own >= 0)) {
      seen = own_.data();
      if (const int32_t status = tallies_[0].count(row, node, must_leave ? -1 : own, seen, &n, detail_)) return status;
    }
    int32_t best = must_leave ? -1 : own, most = 0;
    for (int64_t i = 0; i < n; ++i)
      if (seen[i].label != own && seen[i].count > most && loads_.has_room(seen[i].label, node))
        best = seen[i].label, most = seen[i].count;
    if (best < 0 && everywhere_) best = emptiest(node, own);
    if (best < 0 || best == own) return GLT_OK;
    loads_.move(node, own, best);
    labels_[node] = best, counted_[node] = Label(best);
    ++*moved;
    return GLT_OK;
  }

  int32_t emptiest(int64_t node, int32_t own) const {
    int32_t best = -1;
    for (int32_t label = 0; label < num_labels_; ++label)
      if (label != own && loads_.has_room(label, node) && (best < 0 || loads_.load(label, 0) < loads_.load(best, 0)))
        best = label;
    return best;
  }

  static constexpr int64_t kTaken = 16;            // rows that a thread takes at once
  static constexpr int64_t kRowsAhead = 4;         // whose loads are prefetched
  static constexpr int64_t kLeastEdges = 1 << 16;  // of a window: about half a millisecond of work

  const glt_rows& rows_;
  int32_t* labels_;
  Label* counted_;
  const int64_t num_labels_;
  Loads loads_;
  const bool everywhere_;
  int64_t* detail_;
  std::vector<Tally<Id, Label>> tallies_;  // one per thread
  std::vector<Seen> own_;                  // of a row that is counted when its turn comes
};

template <class Id>
int32_t run(const glt_rows& rows, int32_t* labels, int64_t num_labels, const Loads& loads, bool everywhere, int32_t threads,
            int64_t* moved, int64_t* detail) {
  if (num_labels > kFewLabels || rows.indptr[rows.num_rows] < rows.num_nodes)
    return Pass<Id, int32_t>(rows, labels, labels, num_labels, loads, everywhere, threads, detail).run(moved);
  std::vector<int8_t> counted(rows.num_nodes);  // a quarter of the memory that is read at random
  for (int64_t node = 0; node < rows.num_nodes; ++node) {
    if (labels[node] >= num_labels) return fail(detail, GLT_BAD_ARG, node, labels[node]);
    counted[node] = int8_t(std::max(labels[node], -1));
  }
  return Pass<Id, int8_t>(rows, labels, counted.data(), num_labels, loads, everywhere, threads, detail).run(moved);
}

// Adds to the neighbours in [low, high). In a sorted row they follow each other, so a processor can predict the others.
template <class Id>
int32_t spread_rows(const glt_rows& rows, const int64_t* values, int32_t width, int64_t* out, int64_t low, int64_t high,
                    int64_t* detail) {
  const Id* neighbors = neighbors_of<Id>(rows);
  const int64_t end = rows.indptr[rows.num_rows];
  const uint64_t own = uint64_t(high - low);
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const int64_t* value = values + row * width;
    if (std::all_of(value, value + width, [](int64_t v) { return v == 0; })) continue;
    for (int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
      const int64_t id = neighbors[e];
      if (e + kAhead < end && uint64_t(neighbors[e + kAhead] - low) < own) glt::prefetch(out + neighbors[e + kAhead] * width);
      if (uint64_t(id - low) >= own) {
        if (uint64_t(id) >= uint64_t(rows.num_nodes)) return fail(detail, GLT_BAD_ID, row, id);
        continue;
      }
      for (int32_t k = 0; k < width; ++k) out[id * width + k] += value[k];
    }
  }
  return GLT_OK;
}

bool known(const glt_rows& rows) { return rows.id_bytes == 4 || rows.id_bytes == 8; }

}  // namespace

extern "C" {

int32_t glt_assign_rows(const glt_rows* rows, int32_t* labels, int64_t num_labels, const int32_t* weights,
                        int32_t num_constraints, int64_t* loads, const int64_t* capacity, int32_t everywhere,
                        int32_t threads, int64_t* moved, int64_t* detail) try {
  if (!known(*rows) || num_constraints < 1) return GLT_BAD_ARG;
  const Loads all(weights, num_constraints, loads, capacity);
  const auto pass = rows->id_bytes == 4 ? run<int32_t> : run<int64_t>;
  return pass(*rows, labels, num_labels, all, everywhere, threads, moved, detail);
}
GLT_CATCH(detail)

int32_t glt_spread_rows(const glt_rows* rows, const int64_t* values, int32_t width, int64_t* out, int32_t threads,
                        int64_t* detail) try {
  if (!known(*rows) || width < 1 || threads < 1) return GLT_BAD_ARG;
  const auto spread = rows->id_bytes == 4 ? spread_rows<int32_t> : spread_rows<int64_t>;
  std::vector<int32_t> status(threads, GLT_OK);
  std::vector<std::array<int64_t, 4>> details(threads);
  // Each thread has a range of the sums, and reads all rows.
  glt::parallel(rows->num_nodes, threads, 1, [&](int64_t low, int64_t high, int index) {
    status[index] = spread(*rows, values, width, out, low, high, details[index].data());
  });
  for (int32_t t = 0; t < threads; ++t)  // a bad id is found by each of them
    if (status[t]) return fail(detail, status[t], details[t][0], details[t][1]);
  return GLT_OK;
}
GLT_CATCH(detail)

}  // extern "C"
