// Picks by LABOR of the rows of a block, for a host. The first bytes of numbers nearly always tell which entries have the smallest
// ones. Where entries share the last byte that is picked, their numbers are computed after all rows, when the user ids have come.
// The picks are those of `pick_by_labor`, in half the time: it is then up to the memory, which a batch of 324 k nodes asks for
// 17.9 M neighbours and their bytes.
#pragma once
#include <type_traits>

#include "labor_rows.h"
#include "wide.h"
#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace glt {

// Memory that grows.
struct LaborRoom {
  struct Tied {
    uint32_t row, taken;  // positions taken for sure
    size_t begin, end;    // among `ties`
  };

  std::vector<uint32_t> positions;
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> ties;
  std::vector<Tied> tied;
  std::vector<LaborEntry> entries;
};

// Rows without weights and excluded entries that are longer than `count`.
template <class Id, int kMost>
struct LaborRows {
  const Id* neighbors[kMost];
  int64_t length[kMost];
  uint32_t* out[kMost];  // `count` positions each, ascending
  int n = 0;

  void add(const Id* its_neighbors, int64_t its_length, uint32_t* its_out) {
    neighbors[n] = its_neighbors, length[n] = its_length, out[n++] = its_out;
  }
};

template <class Id, int kMost>
class PickByBytes {
 public:
  // source: any row of the edge type
  PickByBytes(const LaborRows<Id, kMost>& rows, const LaborRow<Id>& source, const uint8_t* first_bytes, uint32_t count, LaborRoom& room)
      : rows(rows), source(source), first_bytes(first_bytes), count(count), room(room) {}

  GLT_HD_INLINE void operator()() const {
    const double likely = 256 * likely_share(count, 1);
    room.ties.clear(), room.tied.clear();
    for (int r = 0; r < std::min(rows.n, kAhead); ++r) prefetch_entries(r, 0);
    for (int r = 0; r < rows.n; ++r) {
      if (r + kAhead < rows.n) prefetch_entries(r + kAhead, 0);
      uint32_t most = uint32_t(std::min(255.0, likely / double(rows.length[r])));
      size_t found = find(r, most);
      if (found < count) found = find(r, most = 255);
      pick(r, found, most);
    }
  }

  // Picks of the rows of which bytes did not tell all.
  void untie() const {
    for (const LaborRoom::Tied& t : room.tied) {
      LaborRow<Id> row = source;
      row.neighbors = rows.neighbors[t.row];
      std::vector<LaborEntry>& entries = room.entries;
      entries.clear();
      for (size_t i = t.begin; i < t.end; ++i) entries.push_back({row.number(room.ties[i]), room.ties[i]});
      std::partial_sort(entries.begin(), entries.begin() + (count - t.taken), entries.end());
      uint32_t* const out = rows.out[t.row];
      for (uint32_t n = t.taken; n < count; ++n) {
        const uint32_t position = entries[n - t.taken].position;
        uint32_t k = n;
        for (; k && out[k - 1] > position; --k) out[k] = out[k - 1];
        out[k] = position;
      }
    }
  }

 private:
  static constexpr int kAhead = 4;
  static constexpr int64_t kAtOnce = 512;
  static constexpr size_t kVector = 16;  // bytes that are counted together

  GLT_HD_INLINE void prefetch_entries(int r, int64_t begin) const {
    constexpr int64_t kLine = 64 / sizeof(Id);
    const int64_t end = std::min(rows.length[r], begin + kAtOnce);
    for (int64_t p = begin; p < end; p += kLine) prefetch(rows.neighbors[r] + p);
  }

  // Collects the entries of a row whose bytes are at most `most`, in `room`; returns their number.
  GLT_HD_INLINE size_t find(int r, uint32_t most) const {
    size_t found = 0;
    for (int64_t begin = 0; begin < rows.length[r]; begin += kAtOnce) {
      const int64_t n = std::min(kAtOnce, rows.length[r] - begin);
      if (room.positions.size() < found + kAtOnce + kVector) {
        room.positions.resize(2 * (found + kAtOnce) + kVector);
        room.bytes.resize(2 * (found + kAtOnce) + kVector);
      }
      prefetch_entries(r, begin + kAtOnce);
      alignas(64) uint8_t bytes[kAtOnce];
      read(rows.neighbors[r] + begin, n, bytes);
      found = collect(bytes, n, uint8_t(most), uint32_t(begin), found);
    }
    return found;
  }

  // An id that is no node has the byte 0, see FirstBytes. Unsigned numbers wrap, so they are as exact as wider ones.
  GLT_HD_INLINE void read(const Id* neighbors, int64_t n, uint8_t* out) const {
    using Index = std::make_unsigned_t<Id>;
    const Index first = Index(source.first_gid), none = Index(source.num_gids);
    const uint8_t* const of = first_bytes;
    alignas(64) Index at[kAtOnce];
    for (int64_t i = 0; i < n; ++i) at[i] = std::min(Index(Index(neighbors[i]) - first), none);
    for (int64_t i = 0; i < n; ++i) out[i] = of[at[i]];
  }

  // Appends the entries whose bytes are at most `most` to those found; returns how many there are. begin: position of the first.
  GLT_HD_INLINE size_t collect(const uint8_t* bytes, int64_t n, uint8_t most, uint32_t begin, size_t found) const {
    uint32_t* const positions = room.positions.data();
    uint8_t* const values = room.bytes.data();
#ifdef __SSE2__
    const __m128i limit = _mm_set1_epi8(char(most));
    for (int64_t i = 0; i < n; i += 64) {
      uint64_t likely = 0;
      for (int k = 0; k < 4; ++k) {
        const __m128i some = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes + i) + k);
        likely |= uint64_t(uint32_t(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(some, limit), some)))) << (16 * k);
      }
      if (n - i < 64) likely &= (uint64_t(1) << (n - i)) - 1;
      for (; likely; likely &= likely - 1) {
        const uint32_t at = uint32_t(i) + uint32_t(__builtin_ctzll(likely));
        positions[found] = begin + at;
        values[found++] = bytes[at];
      }
    }
#else
    for (int64_t i = 0; i < n; ++i) {
      positions[found] = begin + uint32_t(i);
      values[found] = bytes[i];
      found += bytes[i] <= most;
    }
#endif
    return found;
  }

  // How many bytes of the entries found, which others of 255 follow, are at most `most`, a lower one.
  GLT_HD_INLINE uint32_t count_below(size_t found, uint8_t most) const {
    const uint8_t* const values = room.bytes.data();
    uint32_t n = 0;
#ifdef __SSE2__
    const __m128i limit = _mm_set1_epi8(char(most));
    for (size_t i = 0; i < found; i += kVector) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + i));
      n += uint32_t(__builtin_popcount(uint32_t(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(some, limit), some)))));
    }
#else
    for (size_t i = 0; i < found; ++i) n += values[i] <= most;
#endif
    return n;
  }

  GLT_HD_INLINE void pick(int r, size_t found, uint32_t most) const {
    const uint32_t* const positions = room.positions.data();
    uint8_t* const values = room.bytes.data();
    std::fill_n(values + found, kVector, uint8_t(255));
    uint32_t low = 0, last = most, through = uint32_t(found);  // the last byte that is picked; entries up to it
    while (low < last) {
      const uint32_t middle = (low + last) / 2, n = count_below(found, uint8_t(middle));
      const bool enough = n >= count;
      through = enough ? n : through;
      last = enough ? middle : last;
      low = enough ? low : middle + 1;
    }
    uint32_t* const out = rows.out[r];
    if (through == count) {
      for (uint32_t i = 0, n = 0; n < count; ++i) {
        out[n] = positions[i];
        n += values[i] <= last;
      }
      return;
    }
    uint32_t taken = 0;
    const size_t begin = room.ties.size();
    room.ties.resize(begin + found + 1);
    uint32_t* ties = room.ties.data() + begin;
    for (size_t i = 0; i < found; ++i) {
      out[taken] = *ties = positions[i];
      taken += values[i] < last;
      ties += values[i] == last;
    }
    room.ties.resize(size_t(ties - room.ties.data()));
    room.tied.push_back({uint32_t(r), taken, begin, room.ties.size()});
    LaborRow<Id> row = source;
    row.neighbors = rows.neighbors[r];
    for (size_t i = begin; i < room.ties.size(); ++i) prefetch_source(row, room.ties[i]);
  }

  const LaborRows<Id, kMost>& rows;
  const LaborRow<Id>& source;
  const uint8_t* const first_bytes;
  const uint32_t count;
  LaborRoom& room;
};

template <class Id, int kMost>
void pick_by_bytes(const LaborRows<Id, kMost>& rows, const LaborRow<Id>& source, const uint8_t* first_bytes, uint32_t count,
                   LaborRoom& room) {
  const PickByBytes<Id, kMost> pick(rows, source, first_bytes, count, room);
  run_wide(pick);
  pick.untie();
}

}  // namespace glt
