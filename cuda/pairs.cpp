// Counting edges between labels in bounded memory; see glt/assign.h. Host only.
#include <glt/assign.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "graph.h"
#include "guard.h"

namespace {

using glt::fail;

struct Pair {
  uint64_t key;
  int64_t weight;  // number of edges
};

Pair* slots_of(const glt_pairs& pairs) { return static_cast<Pair*>(pairs.slots); }

// Finds slots. A copy of what the table says of itself: the compiler knows that no store to a slot changes it.
class Slots {
 public:
  explicit Slots(const glt_pairs& pairs)
      : slots_(slots_of(pairs)), mask_(uint64_t(pairs.size) - 1), shift_(__builtin_clzll(uint64_t(pairs.size) - 1)) {}

  // The slot that holds a key, or the free one where it belongs.
  Pair* find(uint64_t key) const {
    uint64_t at = first(key);
    while ((slots_[at].key != key) & (slots_[at].key != 0)) at = (at + 1) & mask_;
    return slots_ + at;
  }

  void prefetch(uint64_t key) const { __builtin_prefetch(slots_ + first(key), 1); }

 private:
  // Where the search for a key begins: every bit of the key affects the highest bits of the product.
  uint64_t first(uint64_t key) const { return key * 0x9E3779B97F4A7C15ull >> shift_; }

  Pair* const slots_;
  const uint64_t mask_;
  const int shift_;
};

// The lightest pair that is kept, and of those of its weight the one with the highest key.
struct Last {
  int64_t weight;
  uint64_t key;

  bool keeps(const Pair& pair) const { return pair.weight > weight || (pair.weight == weight && pair.key <= key); }
};

// Visits all slots, free ones with a weight of 0, too: whether a slot is free cannot be predicted.
template <class Visit>
void each(const glt_pairs& pairs, const Visit& visit) {
  for (const Pair *at = slots_of(pairs), *end = at + pairs.size; at < end; ++at) visit(*at);
}

// Finds the bucket with the count-th of the counted entries, the first being 1; reduces `count` by those before it.
size_t bucket_of(const std::vector<int64_t>& counts, int64_t& count) {
  size_t bucket = 0;
  for (; counts[bucket] < count; ++bucket) count -= counts[bucket];
  return bucket;
}

// Selects by counts, for which the table is read in order, and by a sort of only those that share the last count.
Last last_of(const glt_pairs& pairs, int64_t count) {
  constexpr int64_t kWeights = 1 << 10;  // counted one by one; heavier ones are sorted
  constexpr int kBits = 16;              // of the keys
  std::vector<int64_t> counts(kWeights + 1, 0);  // heaviest first
  int64_t ones = 0;  // most pairs: in memory, each would wait for the count before
  uint64_t all = 0;
  each(pairs, [&](const Pair& pair) {
    ones += pair.weight == 1;
    if (pair.weight > 1) ++counts[kWeights - std::min(pair.weight, kWeights)];
    all |= pair.key;
  });
  counts[kWeights - 1] = ones;
  Last last{kWeights - int64_t(bucket_of(counts, count)), 0};
  if (last.weight == kWeights) {
    std::vector<int64_t> heavy;
    each(pairs, [&](const Pair& pair) {
      if (pair.weight >= kWeights) heavy.push_back(pair.weight);
    });
    std::nth_element(heavy.begin(), heavy.begin() + (count - 1), heavy.end(), std::greater<>());
    last.weight = heavy[count - 1];
    count -= std::count_if(heavy.begin(), heavy.end(), [&](int64_t weight) { return weight > last.weight; });
  }
  const int shift = std::max(0, 64 - kBits - __builtin_clzll(all));
  counts.assign(size_t(1) << kBits, 0);
  each(pairs, [&](const Pair& pair) { counts[pair.key >> shift] += pair.weight == last.weight; });
  const uint64_t bucket = bucket_of(counts, count);
  std::vector<uint64_t> keys;
  each(pairs, [&](const Pair& pair) {
    if (pair.weight == last.weight && pair.key >> shift == bucket) keys.push_back(pair.key);
  });
  std::nth_element(keys.begin(), keys.begin() + (count - 1), keys.end());
  last.key = keys[count - 1];
  return last;
}

// Drops the half of the pairs with the fewest edges. Others move to where they would be without those, which is at or before
// their slot if the table is passed from behind a free one: it is read and written in order.
void prune(glt_pairs& pairs) {
  const int64_t kept = pairs.limit / 2;
  const Last last = kept ? last_of(pairs, kept) : Last{INT64_MAX, 0};
  const uint64_t mask = uint64_t(pairs.size) - 1;
  const Slots slots(pairs);
  Pair* const table = slots_of(pairs);
  int64_t forgotten = 0;
  uint64_t start = 0;
  while (table[start].key) ++start;
  for (uint64_t i = 1; i <= mask; ++i) {
    Pair& slot = table[(start + i) & mask];
    const Pair pair = slot;
    slot = {0, 0};
    if (last.keeps(pair)) *slots.find(pair.key) = pair;
    else forgotten += pair.weight;  // 0 of a free slot
  }
  pairs.forgotten += forgotten;
  pairs.used = kept;
}

// Collects pairs, which are counted some at a time: the slots of the next are prefetched while those before are counted.
class Counter {
 public:
  explicit Counter(glt_pairs& pairs) : pairs_(pairs), slots_(pairs) {}

  // Without a branch on `counts`, which a processor could not predict.
  void offer(uint64_t key, bool counts) {
    keys_[n_] = key;
    n_ += counts;
    if (n_ == 2 * kTogether) flush();
  }

  void end() { add(n_); }

 private:
  static constexpr int64_t kTogether = 32;

  // Counts the first `n` pairs.
  void add(int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      Pair* slot = slots_.find(keys_[i]);
      if (!slot->key) {
        if (pairs_.used == pairs_.limit) prune(pairs_), slot = slots_.find(keys_[i]);
        ++pairs_.used;
      }
      slot->key = keys_[i];
      ++slot->weight;
    }
  }

  void flush() {
    for (int64_t i = kTogether; i < n_; ++i) slots_.prefetch(keys_[i]);
    add(kTogether);
    std::copy_n(keys_ + kTogether, kTogether, keys_);
    n_ = kTogether;
  }

  glt_pairs& pairs_;
  const Slots slots_;
  uint64_t keys_[2 * kTogether];
  int64_t n_ = 0;
};

template <class Id>
int32_t add_rows(const glt_rows& rows, const int32_t* labels, glt_pairs& pairs, int64_t* detail) {
  constexpr int64_t kAhead = 32;
  const Id* neighbors = static_cast<const Id*>(rows.neighbors);
  const int64_t last = rows.indptr[rows.num_rows] - 1;
  Counter counter(pairs);
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const uint64_t own = uint32_t(labels[rows.first + row]);
    for (int64_t e = rows.indptr[row], end = rows.indptr[row + 1]; e < end; ++e) {
      const int64_t id = neighbors[e];
      if (uint64_t(id) >= uint64_t(rows.num_nodes)) return fail(detail, GLT_BAD_ID, row, id);
      glt::prefetch(labels + neighbors[std::min(e + kAhead, last)]);
      const uint64_t other = uint32_t(labels[id]);
      counter.offer(own << 32 | other, own < other);
    }
  }
  counter.end();
  return GLT_OK;
}

// Writes the graph of the pairs. No sort: each half of the rows is made by reading the other half in order.
int32_t write_rows(const glt_pairs& pairs, int64_t num_labels, int64_t* indptr, int64_t* neighbors, int64_t* numbers,
                   int64_t* detail) {
  std::vector<int64_t> greater(num_labels, 0), smaller(num_labels, 0);  // where the next of a row goes
  for (const Pair *at = slots_of(pairs), *end = at + pairs.size; at < end; ++at) {
    if (!at->key) continue;
    if (uint32_t(at->key) >= num_labels) return fail(detail, GLT_BAD_ARG, at->key >> 32, uint32_t(at->key));
    ++greater[at->key >> 32], ++smaller[uint32_t(at->key)];
  }
  std::vector<int64_t> middle(num_labels);  // of each row
  indptr[0] = 0;
  for (int64_t label = 0; label < num_labels; ++label) {
    middle[label] = indptr[label] + greater[label];
    indptr[label + 1] = middle[label] + smaller[label];
    greater[label] = indptr[label], smaller[label] = middle[label];
  }
  const auto put = [&](int64_t at, int64_t label, int64_t number) { neighbors[at] = label, numbers[at] = number; };
  each(pairs, [&](const Pair& pair) {  // in the order of the table, to be written again below
    if (pair.key) put(greater[pair.key >> 32]++, uint32_t(pair.key), pair.weight);
  });
  for (int64_t label = 0; label < num_labels; ++label)
    for (int64_t at = indptr[label]; at < middle[label]; ++at) put(smaller[neighbors[at]]++, label, numbers[at]);
  std::copy_n(indptr, num_labels, greater.begin());
  for (int64_t label = 0; label < num_labels; ++label)
    for (int64_t at = middle[label]; at < indptr[label + 1]; ++at) put(greater[neighbors[at]]++, label, numbers[at]);
  return GLT_OK;
}

}  // namespace

int32_t glt_pair_rows(const glt_pairs* pairs, int64_t num_labels, int64_t* indptr, int64_t* neighbors, int64_t* numbers,
                      int64_t* detail) try {
  return write_rows(*pairs, num_labels, indptr, neighbors, numbers, detail);
}
GLT_CATCH(detail)

int32_t glt_count_pairs(const glt_rows* rows, const int32_t* labels, glt_pairs* pairs, int64_t* detail) try {
  if (rows->id_bytes != 4 && rows->id_bytes != 8) return GLT_BAD_ARG;
  return (rows->id_bytes == 4 ? add_rows<int32_t> : add_rows<int64_t>)(*rows, labels, *pairs, detail);
}
GLT_CATCH(detail)
