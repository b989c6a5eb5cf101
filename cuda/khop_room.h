// Bounds for the size of a k-hop batch on the device, and the memory for it: all from the numbers of seeds, the fan-outs and
// the sizes of the types, before anything is sampled.
#pragma once
#include <glt/cuda.h>

#include <algorithm>
#include <vector>

#include "graph.h"
#include "scan.cuh"

namespace glt {

// The fields of a frontier's row that picks need.
struct alignas(16) FoundRow {
  const void* neighbors;  // the first id of the row
  uint32_t degree;        // but for excluded entries
  uint32_t at;            // of its first pick, among the picks of the step
};

// An edge until the lids of all nodes are known.
struct alignas(8) Picked {
  uint32_t slot;          // of the neighbour in the table; kNoSlot for a damaged one
  uint32_t dst;           // lid
};

// One edge type of one hop.
struct KHopStep {
  int32_t hop, edge_type, fanout;
  int64_t rows, picks;    // at most
  bool last_of_type;      // no later step of the hop finds nodes of the same type
};

// Offsets in bytes. Memory that must be zero at first comes first, so that one call clears it.
struct KHopRoom {
  std::vector<KHopStep> steps;
  std::vector<int64_t> nodes, edges;       // at most, by type and by edge type
  std::vector<int64_t> new_counts, scans;  // by step: a word, and the words of two scans
  std::vector<int64_t> picked;             // by edge type
  int64_t zeroed, table, table_bytes, rows, edge_rows, spare, bytes;
  int64_t num_slots;                       // 0: one order for every node of the graph

  int64_t take(int64_t nbytes) {
    const int64_t at = bytes;
    bytes += (nbytes + 255) / 256 * 256;
    return at;
  }
};

// Computes the steps and bounds of what they find. False if a bound does not exist, or is above `max_picks`.
inline bool bound_steps(const glt_graph& g, const glt_khop_shape& shape, KHopRoom* room) {
  std::vector<int64_t> frontier(shape.num_seeds, shape.num_seeds + g.num_types), found(g.num_types), all(g.num_types);
  room->edges.assign(g.num_edge_types, 0);
  int64_t picks = 0;
  for (int32_t hop = 0; hop < shape.num_hops; ++hop) {
    std::fill(found.begin(), found.end(), 0);
    const size_t first = room->steps.size();
    for (int32_t r = 0; r < g.num_edge_types; ++r) {
      const int32_t fanout = shape.fanouts[hop * g.num_edge_types + r];
      const int64_t rows = frontier[shape.dst_type[r]];
      if (!rows || !fanout) continue;
      if (fanout < 0 || rows > (shape.max_picks - picks) / fanout) return false;
      picks += rows * fanout;
      found[shape.src_type[r]] += rows * fanout;
      room->edges[r] += rows * fanout;
      room->steps.push_back({hop, r, fanout, rows, rows * fanout, true});
    }
    for (size_t i = first; i < room->steps.size(); ++i)
      for (size_t k = i + 1; k < room->steps.size(); ++k)
        if (shape.src_type[room->steps[i].edge_type] == shape.src_type[room->steps[k].edge_type])
          room->steps[i].last_of_type = false;
    for (int32_t t = 0; t < g.num_types; ++t) {
      all[t] += found[t];
      frontier[t] = std::min(found[t], shape.type_sizes[t]);
    }
  }
  room->nodes.resize(g.num_types);
  for (int32_t t = 0; t < g.num_types; ++t)
    room->nodes[t] = shape.num_seeds[t] + std::min(all[t], shape.type_sizes[t]);
  return true;
}

// Chooses the table: slots of 8 bytes for twice the ids, or 4 bytes for every node of the graph if that is no more memory.
inline void choose_table(const glt_khop_shape& shape, int64_t num_nodes, KHopRoom* room) {
  int64_t ids = 0, slots = 64;
  for (size_t t = 0; t < room->nodes.size(); ++t) ids += std::min(room->nodes[t], shape.type_sizes[t]);
  while (slots < 2 * ids) slots *= 2;
  room->num_slots = num_nodes <= 2 * slots ? 0 : slots;
  room->table_bytes = room->num_slots ? 8 * slots : 4 * num_nodes;
}

// False if the batch must be sampled step by step: its picks are not bounded by max_picks, or its ids need 64 bits.
inline bool make_room(const glt_graph& g, const glt_khop_shape& shape, KHopRoom* room) {
  int64_t num_nodes = 0, total = 0, rows = 0, spare = 0;
  for (int32_t t = 0; t < g.num_types; ++t) num_nodes += shape.type_sizes[t];
  if (num_nodes >= int64_t(UINT32_MAX) || !bound_steps(g, shape, room)) return false;
  for (int64_t n : room->nodes) total += n;
  for (int64_t n : room->edges) total += n;
  if (total > INT32_MAX / 2) return false;  // slots are 32-bit, and there are up to four times as many
  room->bytes = 0;
  for (const KHopStep& step : room->steps) {
    room->new_counts.push_back(room->bytes);
    room->bytes += 8;
    room->scans.push_back(room->bytes);
    room->bytes += 8 * (scan_words(step.rows) + scan_words(step.picks));
    rows = std::max(rows, step.rows);
    if (step.fanout > GLT_SPARE_FANOUT) spare = std::max(spare, step.picks);
  }
  room->zeroed = room->bytes;
  room->bytes = (room->bytes + 255) / 256 * 256;
  choose_table(shape, num_nodes, room);
  room->table = room->take(room->table_bytes);
  room->rows = room->take(rows * int64_t(sizeof(FoundRow)));
  room->edge_rows = room->take(shape.with_edge ? rows * 8 : 0);
  room->spare = room->take(spare * 12);
  for (int64_t n : room->edges) room->picked.push_back(room->take(n * int64_t(sizeof(Picked))));
  return true;
}

}  // namespace glt
