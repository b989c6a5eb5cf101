// Building the CSC of a part; see glt/build.h. Host only: partitioning is bound by memory and disk.
#include <glt/build.h>

#include <algorithm>
#include <cstring>

#include "graph.h"
#include "guard.h"

namespace {

using glt::fail;

constexpr int64_t kAhead = 24;  // look-ups in a table of all nodes miss the cache; prefetched this far ahead

template <class Int>
struct Record {
  Int row, source, edge;
};

// Neighbours compare by (source, edge id). In 8 bytes the two make one number.
struct NarrowKey {
  uint64_t bits;
  static NarrowKey of(const Record<uint32_t>& r) { return {uint64_t(r.source) << 32 | r.edge}; }
  bool operator<(const NarrowKey& o) const { return bits < o.bits; }
  int64_t source() const { return int64_t(bits >> 32); }
  int64_t edge() const { return int64_t(uint32_t(bits)); }
};

struct WideKey {
  int64_t first, second;
  static WideKey of(const Record<int64_t>& r) { return {r.source, r.edge}; }
  bool operator<(const WideKey& o) const { return first != o.first ? first < o.first : second < o.second; }
  int64_t source() const { return first; }
  int64_t edge() const { return second; }
};

template <class Id>
class BucketOf {
 public:
  explicit BucketOf(const glt_buckets& b) : b_(b), numbers_(static_cast<const Id*>(b.numbers)) {}

  bool has(int64_t node) const { return uint64_t(node) < uint64_t(b_.starts[b_.num_buckets]); }
  void prefetch(int64_t node) const { glt::prefetch(numbers_ + node); }

  // The bucket of a destination; *row is its row in the bucket.
  int32_t find(int64_t node, int64_t* row) const {
    const int64_t number = numbers_[node];
    int32_t bucket = b_.hint[number >> b_.shift];
    while (number >= b_.starts[bucket + 1]) ++bucket;
    *row = number - b_.starts[bucket];
    return bucket;
  }

 private:
  const glt_buckets& b_;
  const Id* numbers_;
};

template <class Id>
int32_t bucket_sizes(const glt_buckets& buckets, const int64_t* dst, int64_t n, int64_t* counts, int64_t* detail) {
  const BucketOf<Id> bucket_of(buckets);
  int64_t row;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) bucket_of.prefetch(dst[i + kAhead]);
    if (!bucket_of.has(dst[i])) return fail(detail, GLT_BAD_ARG, i);
    ++counts[bucket_of.find(dst[i], &row)];
  }
  return GLT_OK;
}

template <class Id, class Int>
int32_t scatter(const glt_buckets& buckets, const int64_t* src, const int64_t* dst, int64_t n, int64_t num_sources,
                int64_t first_edge_id, int64_t* cursor, const int64_t* limit, void* out, int64_t* detail) {
  const BucketOf<Id> bucket_of(buckets);
  auto* records = static_cast<Record<Int>*>(out);
  int64_t row;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) bucket_of.prefetch(dst[i + kAhead]);
    if (!bucket_of.has(dst[i]) || uint64_t(src[i]) >= uint64_t(num_sources)) return fail(detail, GLT_BAD_ARG, i);
    const int32_t bucket = bucket_of.find(dst[i], &row);
    if (cursor[bucket] >= limit[bucket]) return fail(detail, GLT_BAD_ARG, i);
    records[cursor[bucket]++] = {Int(row), Int(src[i]), Int(first_edge_id + i)};
  }
  return GLT_OK;
}

// Counting sort by row: the keys of each row, rows in order; indptr [num_rows + 1].
template <class Key, class Int>
int32_t group_by_row(const Record<Int>* records, int64_t n, int64_t num_rows, Key* keys, int64_t* indptr, int64_t* detail) {
  std::fill(indptr, indptr + num_rows + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    if (uint64_t(records[i].row) >= uint64_t(num_rows)) return fail(detail, GLT_BAD_ARG, i, int64_t(records[i].row));
    ++indptr[records[i].row];
  }
  int64_t total = 0;
  for (int64_t row = 0; row <= num_rows; ++row) total += indptr[row], indptr[row] = total;  // ends of rows
  for (int64_t i = n; i-- > 0;) keys[--indptr[records[i].row]] = Key::of(records[i]);       // from the back: stable
  return GLT_OK;
}

// Sorts each row; with `coalesce` drops all but the first key of a source. Returns how many are left; indptr follows.
template <class Key>
int64_t sort_rows(Key* keys, int64_t* indptr, int64_t num_rows, bool coalesce) {
  int64_t kept = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    Key *begin = keys + indptr[row], *end = keys + indptr[row + 1];
    if (!std::is_sorted(begin, end)) std::sort(begin, end);
    if (coalesce) {
      end = std::unique(begin, end, [](const Key& a, const Key& b) { return a.source() == b.source(); });
      std::memmove(static_cast<void*>(keys + kept), begin, (end - begin) * sizeof(Key));
      indptr[row] = kept;
      kept += end - begin;
    }
  }
  if (!coalesce) return indptr[num_rows];
  return indptr[num_rows] = kept;
}

template <class Key, class Id, class EdgeId>
void write_rows(const Key* keys, int64_t n, const void* table, int64_t offset, void* indices_out, void* edge_ids_out) {
  const auto* numbers = static_cast<const Id*>(table);
  auto* indices = static_cast<Id*>(indices_out);
  auto* edge_ids = static_cast<EdgeId*>(edge_ids_out);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) glt::prefetch(numbers + keys[i + kAhead].source());
    indices[i] = Id(offset + numbers[keys[i].source()]);
    edge_ids[i] = EdgeId(keys[i].edge());
  }
}

bool known_widths(int32_t record_bytes, int32_t id_bytes, int32_t edge_id_bytes) {
  const bool narrow = id_bytes == 4 && edge_id_bytes == 4;
  const bool each = (id_bytes == 4 || id_bytes == 8) && (edge_id_bytes == 4 || edge_id_bytes == 8);
  return each && (record_bytes == 24 || (record_bytes == 12 && narrow));
}

template <class Key, class Int>
int32_t build_rows(const void* records, int64_t n, int64_t num_rows, bool coalesce, const void* numbers, int32_t id_bytes,
                   int64_t offset, int32_t edge_id_bytes, void* work, int64_t* indptr, void* indices, void* edge_ids,
                   int64_t* num_kept, int64_t* detail) {
  auto* keys = static_cast<Key*>(work);
  const int32_t status = group_by_row(static_cast<const Record<Int>*>(records), n, num_rows, keys, indptr, detail);
  if (status != GLT_OK) return status;
  *num_kept = sort_rows(keys, indptr, num_rows, coalesce);
  auto* write = id_bytes == 4 ? (edge_id_bytes == 4 ? write_rows<Key, int32_t, int32_t> : write_rows<Key, int32_t, int64_t>)
                              : (edge_id_bytes == 4 ? write_rows<Key, int64_t, int32_t> : write_rows<Key, int64_t, int64_t>);
  write(keys, *num_kept, numbers, offset, indices, edge_ids);
  return GLT_OK;
}

}  // namespace

extern "C" {

int32_t glt_build_count(const int64_t* ids, int64_t n, int64_t num_nodes, int64_t* counts, int64_t* detail) try {
  for (int64_t i = 0; i < n; ++i) {
    if (uint64_t(ids[i]) >= uint64_t(num_nodes)) return fail(detail, GLT_BAD_ID, i, ids[i]);
    ++counts[ids[i]];
  }
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_build_sizes(const glt_buckets* buckets, const int64_t* dst, int64_t n, int64_t* counts,
                               int64_t* detail) try {
  if (buckets->id_bytes != 4 && buckets->id_bytes != 8) return GLT_BAD_ARG;
  return (buckets->id_bytes == 4 ? bucket_sizes<int32_t> : bucket_sizes<int64_t>)(*buckets, dst, n, counts, detail);
}
GLT_CATCH(detail)

int32_t glt_build_deal(const glt_buckets* buckets, const int64_t* src, const int64_t* dst, int64_t n,
                          int64_t num_sources, int64_t first_edge_id, int64_t* cursor, const int64_t* limit,
                          void* records, int64_t* detail) try {
  if (!known_widths(buckets->record_bytes, buckets->id_bytes, buckets->record_bytes / 3)) return GLT_BAD_ARG;
  auto* run = buckets->record_bytes == 12 ? scatter<int32_t, uint32_t>
                                          : (buckets->id_bytes == 4 ? scatter<int32_t, int64_t> : scatter<int64_t, int64_t>);
  return run(*buckets, src, dst, n, num_sources, first_edge_id, cursor, limit, records, detail);
}
GLT_CATCH(detail)

int32_t glt_build_rows(const void* records, int64_t n, int32_t record_bytes, int64_t num_rows, int32_t coalesce,
                       const void* numbers, int32_t id_bytes, int64_t offset, int32_t edge_id_bytes, void* work,
                       int64_t* indptr, void* indices, void* edge_ids, int64_t* num_kept, int64_t* detail) try {
  if (!known_widths(record_bytes, id_bytes, edge_id_bytes)) return GLT_BAD_ARG;
  auto* run = record_bytes == 12 ? build_rows<NarrowKey, uint32_t> : build_rows<WideKey, int64_t>;
  return run(records, n, num_rows, coalesce != 0, numbers, id_bytes, offset, edge_id_bytes, work, indptr, indices, edge_ids,
             num_kept, detail);
}
GLT_CATCH(detail)

}  // extern "C"
