// What a walk does before a step, and in one: the same on every device.
#pragma once
#include "excluded.h"
#include "graph.h"
#include "random.h"
#include "weighted.h"

namespace glt {

constexpr uint32_t kRestart = 1u << 31;  // the draws of restarts begin here: no step draws so far

GLT_HD uint64_t walk_stream(uint64_t key, const int32_t* trees, int64_t root, int32_t walk, int64_t user_id) {
  const uint64_t of_tree = trees ? tree_key(key, trees[root]) : key;
  return row_stream(tree_key(of_tree, walk), user_id);
}

// One walk, on its way. It has ended where step is the length; at is -1 then, unless it took all its steps.
struct Walk {
  int64_t root;
  uint64_t stream;
  int64_t at;
  int32_t step;

  GLT_HD void end(const glt_walk_rule& rule) { at = -1, step = rule.length; }

  // Whether it takes a step. It is at its root then if it restarts; it ends instead where the rule says so.
  GLT_HD bool sets_out(const glt_walk_rule& rule) {
    if (step >= rule.length) return false;
    const bool can_restart = rule.restart && step && step % rule.num_types == 0;
    if (!can_restart || mix(stream + (uint64_t(kRestart) + uint64_t(step) + 1) * kGolden) >> 32 >= rule.restart) return true;
    if (rule.ends) end(rule);
    else at = root;
    return !rule.ends;
  }

  // The entry of a row that it goes along; -1 where there is none.
  GLT_HD int64_t entry(const WeightedRow& row) const {
    const int64_t left = row.sums ? int64_t(row.left()) : left_of(row.length, row.excluded);
    if (!left) return -1;
    if (row.sums) return int64_t(pick_repeatedly(row, stream, uint32_t(step), uint32_t(left)));
    return row.excluded.past(draw(stream, uint32_t(step), uint32_t(left)));
  }
};

// Some walks. Of each: where it began, the stream of its draws, where it stands, its steps so far, and [length] where each led.
struct Walks {
  glt_walk_rule rule;
  const int64_t* roots;
  const uint64_t* streams;
  int64_t* at;
  int32_t* step;
  int64_t* trace;

  GLT_HD Walk open(int64_t i) const { return {roots[i], streams[i], at[i], step[i]}; }
  GLT_HD void close(int64_t i, const Walk& walk) const { at[i] = walk.at, step[i] = walk.step; }
  GLT_HD int32_t edge_type(const Walk& walk) const { return rule.edge_types[walk.step % rule.num_types]; }
  GLT_HD void go(int64_t i, Walk* walk, int64_t to) const { trace[i * rule.length + walk->step++] = walk->at = to; }
};

}  // namespace glt
