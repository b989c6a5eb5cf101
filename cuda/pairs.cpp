// Counting edges between labels, a bucket of pairs at a time; see glt/assign.h. Host only.
#include <glt/assign.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "graph.h"
#include "guard.h"
#include "threads.h"

namespace {

using glt::fail;

constexpr int64_t kBlock = 256;       // labels of neighbours miss the cache: so many are prefetched, then read
constexpr int64_t kGrain = 1 << 16;   // entries that are worth a thread

// Numbers pairs of labels: the highest bits of a number are its bucket, those below them the record there. The product with an
// odd number has an inverse, and every bit of a pair affects the highest bits of it.
struct Pairs {
  const int32_t label_bits, record_bits;
  const uint64_t mask = ~uint64_t(0) >> (64 - 2 * label_bits);  // of a number
  const uint64_t factor = 0x9E3779B97F4A7C15ull >> (64 - 2 * label_bits) | 1;

  Pairs(int32_t of_labels, int32_t of_buckets) : label_bits(of_labels), record_bits(2 * of_labels - of_buckets) {}

  uint64_t of(uint64_t low, uint64_t high) const { return (low << label_bits | high) * factor & mask; }

  uint64_t bucket(uint64_t number) const { return number >> record_bits; }

  // A record may have bits of its bucket above its own.
  uint64_t of_record(int64_t bucket, uint64_t record) const {
    return uint64_t(bucket) << record_bits | (record & ((uint64_t(1) << record_bits) - 1));
  }

  // The highest `width` bits of a record.
  uint64_t slot(uint64_t record, int width) const { return record << 1 << (63 - record_bits) >> (64 - width); }

  uint64_t inverse() const {
    uint64_t found = factor;  // Newton: right in 3, then 6, 12, 24, 48, 96 bits
    for (int step = 0; step < 5; ++step) found *= 2 - factor * found;
    return found;
  }

  // low << 32 | high of a number times the inverse
  uint64_t key(uint64_t product) const {
    const uint64_t pair = product & mask, high = pair & (mask >> label_bits);
    return pair >> label_bits << 32 | high;
  }
};

// Lists the numbers of the pairs of some rows, and counts those of each bucket; *found: how many. No branch that a processor could
// not predict: what is not listed is overwritten.
template <class Id>
int32_t list_rows(const glt_rows& rows, int64_t begin, int64_t end, const int32_t* labels, const Pairs& pairs,
                  uint64_t* numbers, int64_t* counts, int64_t* found, int64_t* detail) {
  const Id* neighbors = static_cast<const Id*>(rows.neighbors);
  int64_t far[kBlock], held = 0, n = 0;
  uint32_t own[kBlock];
  const auto list = [&] {
    for (int64_t i = 0; i < held; ++i) {
      const uint32_t other = uint32_t(labels[far[i]]);
      const uint32_t swap = (own[i] ^ other) & -uint32_t(other < own[i]);
      const uint64_t number = pairs.of(own[i] ^ swap, other ^ swap);
      numbers[n] = number;
      n += own[i] != other;
      counts[pairs.bucket(number)] += own[i] != other;
    }
    held = 0;
  };
  for (int64_t row = begin; row < end; ++row) {
    const int64_t node = rows.first + row;
    const uint32_t label = uint32_t(labels[node]);
    for (int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
      const int64_t id = neighbors[e];
      if (uint64_t(id) >= uint64_t(rows.num_nodes)) return fail(detail, GLT_BAD_ID, row, id);
      __builtin_prefetch(labels + std::max(node, id), 0, 2);  // of smaller ids none is needed: the node's own is in the cache
      far[held] = id, own[held] = label;
      held += id > node;
      if (held == kBlock) list();
    }
  }
  list();
  *found = n;
  return GLT_OK;
}

// Lists pairs by threads, each with a slice of the rows, then puts their records bucket by bucket.
class Lister {
 public:
  Lister(const glt_rows& rows, const int32_t* labels, const Pairs& pairs, int32_t bits, int32_t threads)
      : rows_(rows), labels_(labels), pairs_(pairs), buckets_(int64_t(1) << bits),
        slices_(std::clamp<int64_t>(rows.indptr[rows.num_rows] / kGrain, 1, threads)),
        counts_(slices_ * buckets_), found_(slices_), status_(slices_), details_(4 * slices_) {}

  template <class Record>
  int32_t run(Record* records, uint64_t* work, int64_t* sizes, int64_t* detail) {
    each_slice([&](int64_t slice) { list(slice, work); });
    for (int64_t s = 0; s < slices_; ++s)
      if (status_[s]) return fail(detail, status_[s], details_[4 * s], details_[4 * s + 1]);
    int64_t at = 0;
    for (int64_t bucket = 0; bucket < buckets_; ++bucket) {
      const int64_t begin = at;
      for (int64_t s = 0; s < slices_; ++s) at += std::exchange(counts_[s * buckets_ + bucket], at);
      sizes[bucket] = at - begin;
    }
    each_slice([&](int64_t slice) {
      int64_t* next = &counts_[slice * buckets_];
      const uint64_t* from = work + rows_.indptr[first_row(slice)];
      for (int64_t i = 0; i < found_[slice]; ++i) records[next[pairs_.bucket(from[i])]++] = Record(from[i]);
    });
    return GLT_OK;
  }

 private:
  // Slices have about as many entries each.
  int64_t first_row(int64_t slice) const {
    const int64_t* ends = rows_.indptr + rows_.num_rows;
    return std::lower_bound(rows_.indptr, ends, *ends * slice / slices_) - rows_.indptr;
  }

  void list(int64_t slice, uint64_t* work) {
    const int64_t begin = first_row(slice), end = slice + 1 < slices_ ? first_row(slice + 1) : rows_.num_rows;
    const auto rows = rows_.id_bytes == 4 ? list_rows<int32_t> : list_rows<int64_t>;
    status_[slice] = rows(rows_, begin, end, labels_, pairs_, work + rows_.indptr[begin], &counts_[slice * buckets_],
                          &found_[slice], &details_[4 * slice]);
  }

  template <class Body>
  void each_slice(const Body& body) {
    glt::parallel(slices_, int32_t(slices_), 1, [&](int64_t slice, int64_t, int) { body(slice); });
  }

  const glt_rows& rows_;
  const int32_t* labels_;
  const Pairs pairs_;
  const int64_t buckets_, slices_;
  std::vector<int64_t> counts_;  // [slices, buckets]: pairs, then where the next one goes
  std::vector<int64_t> found_;
  std::vector<int32_t> status_;
  std::vector<int64_t> details_;
};

// The last of some pairs: of those with the fewest edges the one with the highest key.
struct Last {
  int64_t number;
  uint64_t key;

  bool keeps(int64_t n, uint64_t k) const { return n > number || (n == number && k <= key); }
};

// Moves pairs up to the last to the front; returns how many.
int64_t keep(uint64_t* keys, int64_t* numbers, int64_t n, const Last& last) {
  int64_t kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t key = keys[i];
    const int64_t number = numbers[i];
    keys[kept] = key, numbers[kept] = number;
    kept += last.keeps(number, key);
  }
  return kept;
}

// Counts the records of a bucket at a time.
template <class Record>
class Counter {
 public:
  explicit Counter(const Pairs& pairs) : pairs_(pairs), inverse_(pairs.inverse()) {}

  // Writes the pairs up to the last; returns how many. Records are overwritten.
  int64_t count(int64_t bucket, Record* records, int64_t n, const Last last, uint64_t* keys, int64_t* numbers) {
    const int64_t different = number(records, n);
    int64_t kept = 0;
    for (int64_t i = 0; i < different; ++i) {
      const uint64_t key = pairs_.key(pairs_.of_record(bucket, records[i]) * inverse_);
      keys[kept] = key, numbers[kept] = numbers_[i];
      kept += last.keeps(numbers_[i], key);
    }
    return kept;
  }

 private:
  // Moves the different records to the front, and numbers their edges; returns how many.
  int64_t number(Record* records, int64_t n) {
    int width = 4;
    while (int64_t(1) << width < 2 * n) ++width;
    const uint64_t mask = (uint64_t(1) << width) - 1;
    if (slots_.size() <= mask) slots_.resize(mask + 1);
    if (int64_t(numbers_.size()) < n) numbers_.resize(n);
    std::fill_n(slots_.begin(), mask + 1, 0);
    uint32_t* const slots = slots_.data();
    uint32_t* const numbers = numbers_.data();
    uint32_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Record record = records[i];
      uint64_t at = pairs_.slot(record, width);
      while (slots[at] && records[slots[at] - 1] != record) at = (at + 1) & mask;
      const bool fresh = !slots[at];
      const uint32_t place = fresh ? found : slots[at] - 1;
      records[place] = record;
      numbers[place] = fresh ? 1 : numbers[place] + 1;
      slots[at] = place + 1;
      found += fresh;
    }
    return found;
  }

  const Pairs pairs_;
  const uint64_t inverse_;
  std::vector<uint32_t> slots_;    // one more than the place of a record, at least two for each
  std::vector<uint32_t> numbers_;  // of edges, by place
};

template <class Record>
void sum_buckets(const Pairs& pairs, Record* records, int64_t first_bucket, const int64_t* first, int64_t num_buckets,
                 const Last& last, int32_t threads, uint64_t* keys, int64_t* numbers, int64_t* kept) {
  std::atomic<int64_t> next{0};
  glt::parallel(threads, std::min<int64_t>(threads, num_buckets), 1, [&](int64_t, int64_t, int) {
    Counter<Record> counter(pairs);
    for (int64_t b; (b = next++) < num_buckets;)
      kept[b] = counter.count(first_bucket + b, records + first[b], first[b + 1] - first[b], last, keys + first[b],
                              numbers + first[b]);
  });
}

// Finds the bucket with the count-th of the counted entries, the first being 1; reduces `count` by those before it.
size_t bucket_of(const std::vector<int64_t>& counts, int64_t& count) {
  size_t bucket = 0;
  for (; counts[bucket] < count; ++bucket) count -= counts[bucket];
  return bucket;
}

// Finds the count-th pair by counts, and by a sort of only those that share the last count.
Last last_of(const uint64_t* keys, const int64_t* numbers, int64_t n, int64_t count) {
  constexpr int64_t kNumbers = 1 << 10;  // counted one by one; greater ones are sorted
  constexpr int kBits = 16;              // of the keys
  std::vector<int64_t> counts(kNumbers + 1, 0);  // greatest first
  int64_t ones = 0;  // most pairs: in memory, each would wait for the count before
  uint64_t all = 1;
  for (int64_t i = 0; i < n; ++i) {
    ones += numbers[i] == 1;
    if (numbers[i] > 1) ++counts[kNumbers - std::min(numbers[i], kNumbers)];
    all |= keys[i];
  }
  counts[kNumbers - 1] = ones;
  Last last{kNumbers - int64_t(bucket_of(counts, count)), 0};
  if (last.number == kNumbers) {
    std::vector<int64_t> great;
    std::copy_if(numbers, numbers + n, std::back_inserter(great), [](int64_t number) { return number >= kNumbers; });
    std::nth_element(great.begin(), great.begin() + (count - 1), great.end(), std::greater<>());
    last.number = great[count - 1];
    count -= std::count_if(great.begin(), great.end(), [&](int64_t number) { return number > last.number; });
  }
  const int shift = std::max(0, 64 - kBits - __builtin_clzll(all));
  counts.assign(size_t(1) << kBits, 0);
  for (int64_t i = 0; i < n; ++i) counts[keys[i] >> shift] += numbers[i] == last.number;
  const uint64_t bucket = bucket_of(counts, count);
  std::vector<uint64_t> same;
  for (int64_t i = 0; i < n; ++i)
    if (numbers[i] == last.number && keys[i] >> shift == bucket) same.push_back(keys[i]);
  std::nth_element(same.begin(), same.begin() + (count - 1), same.end());
  last.key = same[count - 1];
  return last;
}

bool is_possible(const glt_pairs& pairs) {
  const int32_t labels = pairs.label_bits, bits = pairs.bits, bytes = pairs.record_bytes;
  return labels >= 1 && labels <= 31 && bits >= 0 && bits <= std::min(16, 2 * labels) &&
         (bytes == 8 || (bytes == 4 && 2 * labels - bits <= 32));
}

// Writes the graph of the pairs. No sort: each half of the rows is made by reading the other half in order.
int32_t write_graph(const uint64_t* keys, const int64_t* counts, int64_t n, int64_t num_labels, int64_t* indptr,
                    int64_t* neighbors, int64_t* numbers, int64_t* detail) {
  std::vector<int64_t> greater(num_labels, 0), smaller(num_labels, 0);  // where the next of a row goes
  for (int64_t i = 0; i < n; ++i) {
    const int64_t low = keys[i] >> 32, high = uint32_t(keys[i]);
    if (low >= high || high >= num_labels) return fail(detail, GLT_BAD_ARG, low, high);
    ++greater[low], ++smaller[high];
  }
  std::vector<int64_t> middle(num_labels);  // of each row
  indptr[0] = 0;
  for (int64_t label = 0; label < num_labels; ++label) {
    middle[label] = indptr[label] + greater[label];
    indptr[label + 1] = middle[label] + smaller[label];
    greater[label] = indptr[label], smaller[label] = middle[label];
  }
  const auto put = [&](int64_t at, int64_t label, int64_t number) { neighbors[at] = label, numbers[at] = number; };
  for (int64_t i = 0; i < n; ++i)  // in the order of the keys, to be written again below
    put(greater[keys[i] >> 32]++, uint32_t(keys[i]), counts[i]);
  for (int64_t label = 0; label < num_labels; ++label)
    for (int64_t at = indptr[label]; at < middle[label]; ++at) put(smaller[neighbors[at]]++, label, numbers[at]);
  std::copy_n(indptr, num_labels, greater.begin());
  for (int64_t label = 0; label < num_labels; ++label)
    for (int64_t at = middle[label]; at < indptr[label + 1]; ++at) put(greater[neighbors[at]]++, label, numbers[at]);
  return GLT_OK;
}

}  // namespace

int32_t glt_list_pairs(const glt_rows* rows, const int32_t* labels, const glt_pairs* pairs, int32_t threads, void* records,
                       uint64_t* work, int64_t* sizes, int64_t* detail) try {
  if ((rows->id_bytes != 4 && rows->id_bytes != 8) || !is_possible(*pairs) || threads < 1) return GLT_BAD_ARG;
  Lister lister(*rows, labels, Pairs(pairs->label_bits, pairs->bits), pairs->bits, threads);
  if (pairs->record_bytes == 4) return lister.run(static_cast<uint32_t*>(records), work, sizes, detail);
  return lister.run(static_cast<uint64_t*>(records), work, sizes, detail);
}
GLT_CATCH(detail)

int32_t glt_sum_pairs(const glt_pairs* pairs, void* records, int64_t first_bucket, const int64_t* first,
                      int64_t num_buckets, const int64_t* number, const uint64_t* key, int32_t threads, uint64_t* out_keys,
                      int64_t* out_numbers, int64_t* found, int64_t* detail) try {
  if (!is_possible(*pairs)) return GLT_BAD_ARG;
  for (int64_t b = 0; b < num_buckets; ++b)
    if (first[b + 1] - first[b] > INT32_MAX) return fail(detail, GLT_BAD_ARG, b, first[b + 1] - first[b]);
  std::vector<int64_t> kept(num_buckets);
  const auto sum = [&](auto* of_width) {
    sum_buckets(Pairs(pairs->label_bits, pairs->bits), of_width, first_bucket, first, num_buckets, Last{*number, *key}, threads,
                out_keys, out_numbers, kept.data());
  };
  pairs->record_bytes == 4 ? sum(static_cast<uint32_t*>(records)) : sum(static_cast<uint64_t*>(records));
  *found = 0;
  for (int64_t b = 0; b < num_buckets; ++b) {
    std::copy_n(out_keys + first[b], kept[b], out_keys + *found);
    std::copy_n(out_numbers + first[b], kept[b], out_numbers + *found);
    *found += kept[b];
  }
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_most_pairs(uint64_t* keys, int64_t* numbers, int64_t n, int64_t most, int64_t* number, uint64_t* key,
                       int64_t* detail) try {
  if (most < 1 || most > n) return fail(detail, GLT_BAD_ARG, most, n);
  const Last last = last_of(keys, numbers, n, most);
  keep(keys, numbers, n, last);
  *number = last.number, *key = last.key;
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_pair_graph(const uint64_t* keys, const int64_t* counts, int64_t n, int64_t num_labels, int64_t* indptr,
                       int64_t* neighbors, int64_t* numbers, int64_t* detail) try {
  return write_graph(keys, counts, n, num_labels, indptr, neighbors, numbers, detail);
}
GLT_CATCH(detail)
