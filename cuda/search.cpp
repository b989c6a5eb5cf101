// Where new entries lie in sorted rows. Each step of a search reads two places that are in no cache: searches of several entries
// take their steps at the same time, and what one reads is fetched while the others are at their turn.
#include <glt/api.h>

#include <algorithm>

#include "guard.h"
#include "shards.h"

namespace glt {
namespace {

constexpr int64_t kAtOnce = 32;

struct NewEntries {
  const int64_t *begin, *end, *id, *time;
};

template <class Id>
class Search {
 public:
  Search(const glt_shards& sources, int64_t shift, const glt_shards& ids, const glt_shards& times, const NewEntries& added)
      : sources_(shards(sources)), ids_(shards(ids)), times_(shards(times)), shift_(shift), added_(added) {}

  int32_t run(int64_t first, int64_t n, int64_t* place, int64_t* detail) {
    int64_t left = 0;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = first + k, begin = added_.begin[i], end = added_.end[i];
      low_[k] = begin, high_[k] = end;
      if (begin >= end) continue;
      if (!in_one(sources_, begin, end) || (times_.data && !in_one(times_, begin, end)))
        return fail(detail, GLT_BAD_ARG, i, begin, end);
      row_[k] = reinterpret_cast<const Id*>(sources_.row(begin)), begin_[k] = begin;
      active_[left++] = k;
    }
    while (left) {
      for (int64_t j = 0; j < left; ++j) {
        const int64_t k = active_[j];
        middle_[k] = low_[k] + (high_[k] - low_[k]) / 2;
        prefetch(row_[k] + (middle_[k] - begin_[k]));
      }
      for (int64_t j = 0; j < left; ++j) {
        const int64_t k = active_[j], gid = int64_t(row_[k][middle_[k] - begin_[k]]) + shift_;
        at_[k] = ids_.has(gid) ? reinterpret_cast<const Id*>(ids_.row(gid)) : nullptr;
        if (!at_[k]) return fail(detail, GLT_BAD_ID, first + k, gid);
        prefetch(at_[k]);
      }
      left = halve(first, left);
    }
    std::copy_n(low_, n, place + first);
    return GLT_OK;
  }

 private:
  static Shards shards(const glt_shards& s) { return {s.shards, s.bounds, s.num_shards, s.bytes}; }

  // Whether a row lies in one shard that is here.
  static bool in_one(const Shards& a, int64_t begin, int64_t end) {
    if (!a.has(begin)) return false;
    const int32_t s = shard_of(a.bounds, a.count, begin);
    return a.data[s] && end <= a.bounds[s + 1];
  }

  // Returns the number of searches that go on.
  int64_t halve(int64_t first, int64_t left) {
    int64_t more = 0;
    for (int64_t j = 0; j < left; ++j) {
      const int64_t k = active_[j];
      bool behind = added_.id[first + k] >= int64_t(*at_[k]);
      if (times_.data) {
        const int64_t time = added_.time[first + k], stored = *reinterpret_cast<const int64_t*>(times_.row(middle_[k]));
        behind = (time > stored) | ((time == stored) & behind);
      }
      low_[k] = behind ? middle_[k] + 1 : low_[k];
      high_[k] = behind ? high_[k] : middle_[k];
      active_[more] = k;
      more += low_[k] < high_[k];
    }
    return more;
  }

  const Shards sources_, ids_, times_;
  const int64_t shift_;
  const NewEntries added_;
  int64_t low_[kAtOnce], high_[kAtOnce], middle_[kAtOnce], begin_[kAtOnce], active_[kAtOnce];
  const Id *row_[kAtOnce], *at_[kAtOnce];
};

template <class Id>
int32_t search_all(Search<Id> search, int64_t n, int64_t* place, int64_t* detail) {
  for (int64_t first = 0; first < n; first += kAtOnce) {
    const int32_t status = search.run(first, std::min(kAtOnce, n - first), place, detail);
    if (status) return status;
  }
  return GLT_OK;
}

}  // namespace
}  // namespace glt

int32_t glt_search(const glt_shards* sources, int64_t shift, const glt_shards* ids, const glt_shards* times,
                   const int64_t* begin, const int64_t* end, const int64_t* id, const int64_t* time, int64_t n,
                   int64_t* place, int64_t* detail) try {
  const glt::NewEntries added{begin, end, id, time};
  if (sources->bytes != ids->bytes) return glt::fail(detail, GLT_BAD_ARG, -1, sources->bytes, ids->bytes);
  if (ids->bytes == 4) return glt::search_all(glt::Search<int32_t>(*sources, shift, *ids, *times, added), n, place, detail);
  return glt::search_all(glt::Search<int64_t>(*sources, shift, *ids, *times, added), n, place, detail);
}
GLT_CATCH(detail)
