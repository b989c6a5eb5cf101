// Picks by weight of many rows at once, for a host. pick_weighted row by row is a chain of loads and draws each of which waits for
// the one before; here those of other rows fill the time. Taken entries are in vectors, which are compared and moved without a
// branch. The picks are the same, in a third of the time.
#pragma once
#include <algorithm>
#include <cmath>

#include "graph.h"
#include "weighted.h"
#include "wide.h"

namespace glt {

constexpr int kLanes = 32;  // 8 take 1.7 times as long
constexpr int64_t kFewPicks = 64;  // each pick moves past all before it: with more of them one row at a time is as good

// Rows without excluded entries. out: positions that are picked, ascending.  counts: how many they are.
struct WeightedLanes {
  WeightedRow row[kLanes];
  uint64_t stream[kLanes];
  uint32_t* out[kLanes];
  int32_t counts[kLanes];
  int n = 0;

  void add(const WeightedRow& next, uint64_t its_stream, uint32_t* its_out) {
    row[n] = next, stream[n] = its_stream, out[n++] = its_out;
  }

  // Prefetches the end of each row, which opens it.
  GLT_HD_INLINE void prefetch_ends() const {
    for (int l = 0; l < n; ++l) prefetch_l2(row[l].sums + row[l].length - 1);
  }

  // Prefetches for draw i of each row: of a short row its line i, of a long one the place of the pick if all weights were the same.
  GLT_HD_INLINE void prefetch_draw(int32_t i) const {
    constexpr int64_t kLine = 64 / sizeof(int32_t), kShort = 4;
    for (int l = 0; l < n; ++l) {
      const int64_t length = row[l].length;
      if (length > kShort * kLine) prefetch_l2(row[l].sums + draw(stream[l], uint32_t(i), uint32_t(length)));
      else if (i < kShort) prefetch_l2(row[l].sums + std::min(i * kLine, length - 1));
    }
  }
};

// Vectors of the processor.
struct Narrow {
  typedef int32_t Numbers __attribute__((vector_size(16)));
  typedef float Floats __attribute__((vector_size(16)));
};
struct Wide {
  typedef int32_t Numbers __attribute__((vector_size(32)));
  typedef float Floats __attribute__((vector_size(32)));
};

template <class Vectors>
class PickInLanes {
  // A number of each of some lanes. Sums are below 2^31, so that signed numbers, which compare in fewer instructions, are enough.
  typedef typename Vectors::Numbers Vector;
  typedef typename Vectors::Floats Floats;
  static constexpr int kVector = sizeof(Vector) / 4, kVectors = kLanes / kVector;

 public:
  PickInLanes(WeightedLanes& lanes, const WeightedLanes& next) : lanes(lanes), next(next) {}

  GLT_HD_INLINE void operator()(int32_t count) const {
    State s;
    begin(s);
    next.prefetch_ends();
    for (int32_t i = 0; i < count; ++i) {
      Vector mass[kVectors], place[kVectors];
      next.prefetch_draw(i);
      draw_masses(s, i, mass);
      find(s, mass, place);
      for (int v = 0; v < kVectors; ++v) take(s, v, i, mass[v], place[v]);
    }
    for (int l = 0; l < lanes.n; ++l) {
      lanes.counts[l] = s.counts[l / kVector][l % kVector];
      for (int32_t k = 0; k < count; ++k) lanes.out[l][k] = uint32_t(s.taken[k][l / kVector].place[l % kVector]);
    }
  }

 private:
  // Entries of lanes: where each begins among the sums, its weight, its position.
  struct Entries {
    Vector begin, weight, place;
  };

  struct State {
    Vector left[kVectors], counts[kVectors];
    // An entry is searched in a window around its expected position, which is computed from its share of the weight: it is there
    // unless weights differ a lot. last: the last position at which a window can begin.
    Vector window[kVectors], last[kVectors];
    Floats slope[kVectors];  // entries to a unit of weight
    int32_t widest = 1;
    Entries taken[kFewPicks][kVectors];  // in ascending order
  };

  GLT_HD_INLINE void begin(State& s) const {
    for (int v = 0; v < kVectors; ++v) {
      for (int l = 0; l < kVector; ++l) {
        const WeightedRow& row = lanes.row[v * kVector + l];
        const int32_t length = int32_t(row.length), window = std::min(length, 2 * int32_t(std::sqrt(float(length))) + 2);
        s.left[v][l] = int32_t(row.total());
        s.counts[v][l] = 0;
        s.window[v][l] = window;
        s.last[v][l] = length - window;
        s.slope[v][l] = float(length) / float(row.total());
        s.widest = std::max(s.widest, window);
      }
    }
  }

  GLT_HD_INLINE void draw_masses(const State& s, int32_t i, Vector* mass) const {
    for (int v = 0; v < kVectors; ++v) {
      for (int l = 0; l < kVector; ++l) {
        const uint32_t left = uint32_t(s.left[v][l]);
        mass[v][l] = left ? int32_t(draw(lanes.stream[v * kVector + l], uint32_t(i), left)) : 0;
      }
      for (int32_t k = 0; k < i; ++k)  // past what is taken
        mass[v] += (s.taken[k][v].begin <= mass[v]) & s.taken[k][v].weight;
    }
  }

  // `WeightedRow::find` in the window of each lane, step by step.
  GLT_HD_INLINE void find(const State& s, const Vector* mass, Vector* low) const {
    Vector n[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      n[v] = s.window[v];
      low[v] = __builtin_convertvector(__builtin_convertvector(mass[v], Floats) * s.slope[v], Vector) - n[v] / 2;
      low[v] = (low[v] > s.last[v]) ? s.last[v] : low[v];
      low[v] &= ~(low[v] < 0);  // true is -1
    }
    for (int32_t longest = s.widest; longest > 1; longest -= longest / 2) {
      for (int v = 0; v < kVectors; ++v) {
        const Vector half = n[v] / 2, at = low[v] + half + (half > 0);
        Vector through;
        for (int l = 0; l < kVector; ++l) through[l] = int32_t(lanes.row[v * kVector + l].through(at[l]));
        low[v] += (through <= mass[v]) & half;
        n[v] -= half;
      }
    }
  }

  // The entries at these places, or where the masses lie outside the windows those of the whole rows, join what is taken.
  GLT_HD_INLINE void take(State& s, int v, int32_t count, const Vector& mass, Vector& place) const {
    const WeightedRow* rows = lanes.row + v * kVector;
    Entries next;
    read(rows, place, next);
    const Vector missed = (next.begin > mass) | (mass - next.begin >= next.weight);
    int32_t any = 0;
    for (int l = 0; l < kVector; ++l) any |= missed[l];
    if (any) {
      for (int l = 0; l < kVector; ++l)
        if (missed[l]) place[l] = int32_t(rows[l].find(uint32_t(mass[l])));
      read(rows, place, next);
    }
    const Vector none = s.left[v] == 0;
    next.begin |= none & INT32_MAX;  // behind all others
    next.weight &= ~none;
    s.counts[v] += none + 1;
    s.left[v] -= next.weight;
    for (int32_t k = 0; k < count; ++k) {
      Entries& at = s.taken[k][v];
      const Vector later = at.begin > next.begin;
      exchange(later, at.begin, next.begin);
      exchange(later, at.weight, next.weight);
      exchange(later, at.place, next.place);
    }
    s.taken[count][v] = next;
  }

  static GLT_HD_INLINE void read(const WeightedRow* rows, const Vector& place, Entries& found) {
    found.place = place;
    for (int l = 0; l < kVector; ++l) {
      const uint32_t before = rows[l].before(place[l]);
      found.begin[l] = int32_t(before), found.weight[l] = int32_t(rows[l].through(place[l]) - before);
    }
  }

  static GLT_HD_INLINE void exchange(const Vector& where, Vector& a, Vector& b) {
    const Vector change = (a ^ b) & where;
    a ^= change;
    b ^= change;
  }

  WeightedLanes& lanes;
  const WeightedLanes& next;
};

// Draws `count` entries of each row, or as many as have a weight. At least one row has been added. next: rows that are drawn after
// these; what they need is fetched meanwhile, since all of a block at once is more than the memory system queues.
inline void pick_in_lanes(WeightedLanes& lanes, int32_t count, const WeightedLanes& next) {
  for (int l = lanes.n; l < kLanes; ++l) lanes.row[l] = lanes.row[0], lanes.stream[l] = lanes.stream[0];
  run_widest(PickInLanes<Wide>(lanes, next), PickInLanes<Narrow>(lanes, next), count);
}

}  // namespace glt
