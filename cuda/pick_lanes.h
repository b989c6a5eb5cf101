// The picks of pick.h, made by lanes that work side by side: no draw waits for another one.
//
// Floyd's algorithm in order: draw i gives q[i] in [0, first + i], first = degree - fanout; where q[i] was taken before,
// first + i is taken instead. After the draws before i the taken positions are q[k] of every k < i (taken by k or
// earlier), and first + k of those k < i that found q[k] taken. So whether q[i] is taken follows from the draws alone.
#pragma once
#include "random.h"
#include "weighted.h"

namespace glt {

// True if draw i finds its position taken. Each round goes to a lower i, so the loop ends.
GLT_HD bool is_taken(const uint32_t* q, uint32_t i, uint32_t first) {
  for (;;) {
    for (uint32_t k = 0; k < i; ++k)
      if (q[k] == q[i]) return true;
    if (q[i] < first || q[i] - first >= i) return false;
    i = q[i] - first;  // q[i] was taken by draw k = q[i] - first if that one found its own position taken
  }
}

// The rank of a pick among all n in ascending order; equal ones keep their order.
GLT_HD uint32_t rank_of(const uint32_t* picks, uint32_t n, uint32_t i) {
  const uint32_t mine = picks[i];
  uint32_t rank = 0;
  for (uint32_t k = 0; k < n; ++k) rank += picks[k] < mine || (picks[k] == mine && k < i);
  return rank;
}

// The picks of one row, by lanes that wait for each other between the stages.
struct RowPicks {
  uint32_t degree, count;
  bool all;                 // every neighbour once, nothing is drawn
  bool replace;
  uint64_t stream;
  uint32_t *drawn, *picks;  // [count] each, which all lanes see; the same with replacement
  WeightedRow weighted;     // sums null: all entries weigh the same
  uint32_t skipped = 0;     // where `all` begins
  bool given = false;       // the caller makes the picks, positions in any order, in the first stage

  GLT_DEVICE void first(uint32_t lane, uint32_t lanes) const {
    if (all || given) return;
    if (weighted.sums) return first_weighted(lane, lanes);
    for (uint32_t i = lane; i < count; i += lanes)
      drawn[i] = draw(stream, i, replace ? degree : degree - count + i + 1);
  }

  GLT_DEVICE void second(uint32_t lane, uint32_t lanes) const {
    if (all || replace || weighted.sums || given) return;
    const uint32_t floor = degree - count;
    for (uint32_t i = lane; i < count; i += lanes) picks[i] = is_taken(drawn, i, floor) ? floor + i : drawn[i];
  }

  // Without replacement a draw needs the weights of all picks before it: one lane makes them.
  GLT_DEVICE void first_weighted(uint32_t lane, uint32_t lanes) const {
    if (!replace) {
      if (lane == 0) pick_weighted(weighted, stream, count, picks);
      return;
    }
    const uint32_t left = weighted.left();
    for (uint32_t i = lane; i < count; i += lanes) picks[i] = pick_repeatedly(weighted, stream, i, left);
  }

  // write(position in the row, place among the picks) for each pick
  template <class Write>
  GLT_DEVICE void third(uint32_t lane, uint32_t lanes, const Write& write) const {
    if (all && weighted.sums) {
      if (lane == 0) weighted.each_positive(count, [&](int64_t position, int64_t rank) { write(uint32_t(position), uint32_t(rank)); });
      return;
    }
    for (uint32_t i = lane; i < count; i += lanes) write(all ? skipped + i : picks[i], all ? i : rank_of(picks, count, i));
  }
};

// memory: 2 * count words; of picks that are given 3 * count
GLT_DEVICE RowPicks open_picks(uint32_t degree, uint32_t count, int32_t fanout, bool replace, uint64_t stream,
                               uint32_t* memory) {
  const bool all = count == degree && !(replace && fanout >= 0);
  return {degree, count, all, replace, stream, memory, replace ? memory : memory + count, {}};
}

// The last `count` entries of a row.
GLT_DEVICE RowPicks open_latest(uint32_t degree, uint32_t count) {
  return {degree, count, true, false, 0, nullptr, nullptr, {}, degree - count};
}

// The same for a row with prefix sums.
GLT_DEVICE RowPicks open_weighted(const WeightedRow& row, uint32_t count, int32_t fanout, bool replace, uint64_t stream,
                                  uint32_t* memory) {
  const bool all = row.takes_all(count, fanout, replace);
  return {uint32_t(row.length), count, all, replace, stream, memory, replace ? memory : memory + count, row};
}

}  // namespace glt
