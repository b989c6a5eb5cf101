// The draws of walks, the same on every device.
#pragma once
#include "excluded.h"
#include "random.h"
#include "weighted.h"

namespace glt {

constexpr uint32_t kRestart = 1u << 31;  // first draw of restarts, above the draws of all steps

GLT_HD uint64_t walk_stream(uint64_t key, const int32_t* trees, int64_t root, int32_t walk, int64_t user_id) {
  const uint64_t of_tree = trees ? tree_key(key, trees[root]) : key;
  return row_stream(tree_key(of_tree, walk), user_id);
}

// True if a walk restarts before a step.
GLT_HD bool restarts(const glt_walk_rule& rule, uint64_t stream, int32_t step) {
  if (!rule.restart || step == 0 || step % rule.num_types) return false;
  return mix(stream + (uint64_t(kRestart) + uint64_t(step) + 1) * kGolden) >> 32 < rule.restart;
}

// The entry of a row that a step follows; -1 if there is none.
GLT_HD int64_t entry_of(const WeightedRow& row, uint64_t stream, int32_t step) {
  const int64_t left = row.sums ? int64_t(row.left()) : left_of(row.length, row.excluded);
  if (!left) return -1;
  if (row.sums) return int64_t(pick_repeatedly(row, stream, uint32_t(step), uint32_t(left)));
  return row.excluded.past(draw(stream, uint32_t(step), uint32_t(left)));
}

}  // namespace glt
