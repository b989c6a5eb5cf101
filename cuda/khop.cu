// A whole k-hop batch, queued at once: every number that a kernel needs of the ones before it stays on the device, and
// kernels are launched for as many items as there can be.
#include <glt/cuda.h>

#include "guard.h"
#include "khop_bodies.h"
#include "khop_room.h"

namespace glt {
namespace {

struct KHopOut {
  int64_t *const *gid, *const *uid, *const *edge_index, *const *edge_row;
  int64_t* sizes;
};

// Queues one batch. Counts on the device, each written by one kernel and read by later ones alone: of the nodes of a type
// after the last step that found some (`now`), and when the last two hops began (`hi`, `lo`); of an edge type's edges.
template <class Id, class Lids>
class KHopQueue {
 public:
  KHopQueue(const glt_graph& graph, const glt_khop_shape& shape, const KHopRoom& room, const Lids& lids, char* memory,
            const KHopOut& out, void* stream, int64_t* detail)
      : g_(graph), shape_(shape), room_(room), lids_(lids), memory_(memory), out_(out), stream_(stream), detail_(detail) {
    nodes_ = out.sizes + 5;
    edges_ = nodes_ + (shape.num_hops + 2) * g_.num_types;
    for (int32_t t = 0; t < g_.num_types; ++t) {
      lo_.push_back(nodes_ + t);
      hi_.push_back(nodes_ + g_.num_types + t);
    }
    now_ = hi_;
    for (int32_t r = 0; r < g_.num_edge_types; ++r) num_edges_.push_back(edges_ + r);
  }

  int32_t all(const int64_t* const* seeds, uint64_t batch_key, const glt_excluded* excluded) {
    int32_t status = empty();
    for (int32_t t = 0; t < g_.num_types && !status; ++t) status = begin(t, seeds[t], shape_.num_seeds[t]);
    for (size_t s = 0; s < room_.steps.size() && !status; ++s) {
      if (s && room_.steps[s].hop != room_.steps[s - 1].hop) lo_ = hi_, hi_ = now_;
      status = step(s, batch_key, excluded);
    }
    for (int32_t r = 0; r < g_.num_edge_types && !status; ++r) status = finish(r);
    return status;
  }

 private:
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }

  int32_t empty() {
    const int64_t sizes = edges_ - out_.sizes + (shape_.num_hops + 1) * g_.num_edge_types;
    int32_t status = fill_bytes(out_.sizes, 0, 8 * sizes, stream_, detail_);
    if (!status) status = fill_bytes(memory_, 0, room_.zeroed, stream_, detail_);
    if (!status) status = fill_bytes(memory_ + room_.table, 0xff, room_.table_bytes, stream_, detail_);
    return status;
  }

  int32_t begin(int32_t t, const int64_t* seeds, int64_t n) {
    const KHopSeeds<Id, Lids> body{g_, lids_, t, seeds, n, out_.gid[t], out_.uid[t], hi_[t], out_.sizes};
    return for_each(n, body, stream_, detail_);
  }

  int32_t step(size_t s, uint64_t batch_key, const glt_excluded* excluded) {
    const KHopStep& step = room_.steps[s];
    const int32_t r = step.edge_type, source = shape_.src_type[r], destination = shape_.dst_type[r];
    KHopContext c{};
    c.g = g_;
    c.edge_type = r, c.hop = step.hop, c.fanout = step.fanout;
    c.replace = shape_.replace != 0;
    c.batch_key = batch_key;
    if (excluded) c.excluded = excluded[r];
    c.dst_gid = out_.gid[destination], c.dst_uid = out_.uid[destination];
    c.lo = lo_[destination], c.hi = hi_[destination];
    c.edges_before = num_edges_[r], c.edges_after = edges_ + (step.hop + 1) * g_.num_edge_types + r;
    c.nodes_before = now_[source];
    c.nodes_after = step.last_of_type ? nodes_ + (step.hop + 2) * g_.num_types + source : at<int64_t>(room_.new_counts[s]);
    c.rows = at<FoundRow>(room_.rows);
    c.row_edges = shape_.with_edge ? at<int64_t>(room_.edge_rows) : nullptr;
    c.spare = at<uint32_t>(room_.spare);
    c.picked = at<Picked>(room_.picked[r]);
    c.edge_row = shape_.with_edge ? out_.edge_row[r] : nullptr;
    c.src_type = source;
    c.src_gid = out_.gid[source], c.src_uid = out_.uid[source];
    c.error = out_.sizes;
    num_edges_[r] = c.edges_after;
    now_[source] = c.nodes_after;

    uint64_t* scan = at<uint64_t>(room_.scans[s]);
    int32_t status = scan_each(step.rows, KHopCount<Id>{c}, scan, stream_, detail_);
    if (!status) status = pick(step, c);
    if (!status)
      status = scan_each(step.picks, KHopNumber<Id, Lids>{c, lids_}, scan + scan_words(step.rows), stream_, detail_);
    return status;
  }

  // Chooses the fewest lanes for a row that have one pick each.
  int32_t pick(const KHopStep& step, const KHopContext& c) {
    if (step.fanout <= 8) return for_each_lanes<8>(step.rows, KHopPick<Id, Lids, 8>{c, lids_}, stream_, detail_);
    if (step.fanout <= 16) return for_each_lanes<16>(step.rows, KHopPick<Id, Lids, 16>{c, lids_}, stream_, detail_);
    return for_each_lanes<32>(step.rows, KHopPick<Id, Lids, 32>{c, lids_}, stream_, detail_);
  }

  int32_t finish(int32_t r) {
    const KHopEdges<Lids> body{lids_, at<Picked>(room_.picked[r]), num_edges_[r], out_.edge_index[r]};
    return for_each(room_.edges[r], body, stream_, detail_);
  }

  const glt_graph& g_;
  const glt_khop_shape& shape_;
  const KHopRoom& room_;
  const Lids lids_;
  char* memory_;
  const KHopOut out_;
  void* stream_;
  int64_t *detail_, *nodes_, *edges_;
  std::vector<int64_t*> lo_, hi_, now_, num_edges_;
};

int32_t check_shape(const glt_graph& g, const glt_khop_shape& shape, int64_t* detail) {
  const bool good = shape.num_hops >= 0 && shape.num_hops <= GLT_MAX_HOPS && (g.id_bytes == 4 || g.id_bytes == 8);
  if (!good) return fail(detail, GLT_BAD_ARG, shape.num_hops, g.id_bytes);
  if (!can_draw(g, shape.replace != 0)) return fail(detail, GLT_BAD_ARG, shape.replace);
  for (int32_t t = 0; t < g.num_types; ++t)
    if (shape.num_seeds[t] < 0) return fail(detail, GLT_BAD_ARG, t, shape.num_seeds[t]);
  for (int32_t i = 0; i < shape.num_hops * g.num_edge_types; ++i)
    if (!is_fanout(shape.fanouts[i])) return fail(detail, GLT_BAD_ARG, i, shape.fanouts[i]);
  return GLT_OK;
}

}  // namespace
}  // namespace glt

int32_t glt_cuda_khop_room(const glt_graph* graph, const glt_khop_shape* shape, int64_t* nodes, int64_t* edges,
                           int64_t* workspace_bytes, int64_t* detail) try {
  if (const int32_t status = glt::check_shape(*graph, *shape, detail)) return status;
  glt::KHopRoom room{};
  *workspace_bytes = -1;
  if (!glt::make_room(*graph, *shape, &room)) return GLT_OK;
  std::copy(room.nodes.begin(), room.nodes.end(), nodes);
  std::copy(room.edges.begin(), room.edges.end(), edges);
  *workspace_bytes = room.bytes;
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_cuda_khop(const glt_graph* graph, const glt_khop_shape* shape, const int64_t* const* seeds, uint64_t batch_key,
                      const glt_excluded* excluded, void* workspace, int64_t workspace_bytes, int64_t* const* gid, int64_t* const* uid,
                      int64_t* const* edge_index, int64_t* const* edge_row, int64_t* sizes, int64_t* detail,
                      void* stream) try {
  if (const int32_t status = glt::check_shape(*graph, *shape, detail)) return status;
  glt::KHopRoom room{};
  if (!glt::make_room(*graph, *shape, &room) || workspace_bytes < room.bytes)
    return glt::fail(detail, GLT_BAD_ARG, workspace_bytes, room.bytes);
  char* memory = static_cast<char*>(workspace);
  const glt::KHopOut out{gid, uid, edge_index, edge_row, sizes};
  auto run = [&](auto id, const auto& lids) {
    using Queue = glt::KHopQueue<decltype(id), std::decay_t<decltype(lids)>>;
    return Queue(*graph, *shape, room, lids, memory, out, stream, detail).all(seeds, batch_key, excluded);
  };
  auto with_table = [&](auto id) {
    void* table = memory + room.table;
    if (!room.num_slots) return run(id, glt::DirectLids{static_cast<uint32_t*>(table)});
    const int32_t shift = 64 - __builtin_ctzll(uint64_t(room.num_slots));
    return run(id, glt::HashedLids{static_cast<uint64_t*>(table), uint32_t(room.num_slots - 1), shift});
  };
  return graph->id_bytes == 4 ? with_table(int32_t()) : with_table(int64_t());
}
GLT_CATCH(detail)
