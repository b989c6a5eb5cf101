// The picks of pick.h, made by lanes that work side by side: no draw waits for another one.
//
// Floyd's algorithm in order: draw i gives q[i] in [0, first + i], first = degree - fanout; where q[i] was taken before,
// first + i is taken instead. After the draws before i the taken positions are q[k] of every k < i (taken by k or
// earlier), and first + k of those k < i that found q[k] taken. So whether q[i] is taken follows from the draws alone.
#pragma once
#include "random.h"

namespace glt {

// Whether draw i finds its position taken. Each round goes to a lower i.
GLT_HD bool is_taken(const uint32_t* q, uint32_t i, uint32_t first) {
  for (;;) {
    for (uint32_t k = 0; k < i; ++k)
      if (q[k] == q[i]) return true;
    if (q[i] < first || q[i] - first >= i) return false;
    i = q[i] - first;  // q[i] was taken by draw k = q[i] - first if that one found its own position taken
  }
}

// Where a pick stands among all n in ascending order; equal ones keep their order.
GLT_HD uint32_t rank_of(const uint32_t* picks, uint32_t n, uint32_t i) {
  const uint32_t mine = picks[i];
  uint32_t rank = 0;
  for (uint32_t k = 0; k < n; ++k) rank += picks[k] < mine || (picks[k] == mine && k < i);
  return rank;
}

}  // namespace glt
