// Assigning nodes to parts; see glt/assign.h. Host only.
#include <glt/assign.h>

#include <algorithm>
#include <vector>

#include "graph.h"
#include "guard.h"

namespace {

using glt::fail;

constexpr int64_t kAhead = 24;  // labels of neighbours miss the cache; prefetched this far ahead

template <class Id>
const Id* neighbors_of(const glt_rows& rows) {
  return static_cast<const Id*>(rows.neighbors);
}

template <class Id, class Label>
void prefetch_label(const glt_rows& rows, const Id* neighbors, int64_t at, const Label* labels) {
  if (at + kAhead < rows.indptr[rows.num_rows]) glt::prefetch(labels + neighbors[at + kAhead]);
}

// The loads of all labels in C constraints, and the labels below their limits.
class Loads {
 public:
  Loads(const int32_t* weights, int32_t constraints, int64_t* loads, const int64_t* capacity)
      : weights_(weights), c_(constraints), loads_(loads), capacity_(capacity) {}

  bool has_room(int64_t label, int64_t node) const {
    for (int32_t c = 0; c < c_; ++c)
      if (weight(node, c) && load(label, c) + weight(node, c) > capacity_[c]) return false;
    return true;
  }

  bool is_over(int64_t label, int64_t node) const {
    for (int32_t c = 0; c < c_; ++c)
      if (weight(node, c) && load(label, c) > capacity_[c]) return true;
    return false;
  }

  void move(int64_t node, int64_t from, int64_t to) {
    for (int32_t c = 0; c < c_; ++c) {
      if (from >= 0) loads_[from * c_ + c] -= weight(node, c);
      loads_[to * c_ + c] += weight(node, c);
    }
  }

  int64_t load(int64_t label, int32_t c) const { return loads_[label * c_ + c]; }

 private:
  int64_t weight(int64_t node, int32_t c) const { return weights_[node * c_ + c]; }

  const int32_t* weights_;
  const int32_t c_;
  int64_t* loads_;
  const int64_t* capacity_;
};

template <class Id>
class Pass {
 public:
  Pass(const glt_rows& rows, int32_t* labels, int64_t num_labels, const Loads& loads, bool everywhere, int32_t* counts,
       int64_t* detail)
      : rows_(rows), labels_(labels), num_labels_(num_labels), loads_(loads), everywhere_(everywhere), counts_(counts),
        detail_(detail) {}

  int32_t run(int64_t* moved) {
    *moved = 0;
    for (int64_t row = 0; row < rows_.num_rows; ++row) {
      const int32_t status = count(row);
      if (status == GLT_OK) *moved += place(rows_.first + row);
      for (const int32_t label : seen_) counts_[label] = 0;
      seen_.clear();
      if (status != GLT_OK) return status;
    }
    return GLT_OK;
  }

 private:
  // Counts each label among the neighbours; `seen_` has the labels in order of occurrence.
  int32_t count(int64_t row) {
    const Id* neighbors = neighbors_of<Id>(rows_);
    const int32_t own = labels_[rows_.first + row];
    if (own >= num_labels_) return fail(detail_, GLT_BAD_ARG, row, own);
    for (int64_t e = rows_.indptr[row]; e < rows_.indptr[row + 1]; ++e) {
      const int64_t id = neighbors[e];
      if (uint64_t(id) >= uint64_t(rows_.num_nodes)) return fail(detail_, GLT_BAD_ID, row, id);
      prefetch_label(rows_, neighbors, e, labels_);
      const int32_t label = labels_[id];
      if (label < 0) continue;
      if (label >= num_labels_) return fail(detail_, GLT_BAD_ARG, row, label);
      if (counts_[label]++ == 0) seen_.push_back(label);
    }
    return GLT_OK;
  }

  bool place(int64_t node) {
    const int32_t own = labels_[node];
    const bool must_leave = own < 0 || loads_.is_over(own, node);
    int32_t best = must_leave ? -1 : own;
    int32_t most = must_leave ? -1 : counts_[own];
    for (const int32_t label : seen_)
      if (label != own && counts_[label] > most && loads_.has_room(label, node)) best = label, most = counts_[label];
    if (best < 0 && everywhere_) best = emptiest(node, own);
    if (best < 0 || best == own) return false;
    loads_.move(node, own, best);
    labels_[node] = best;
    return true;
  }

  int32_t emptiest(int64_t node, int32_t own) const {
    int32_t best = -1;
    for (int32_t label = 0; label < num_labels_; ++label)
      if (label != own && loads_.has_room(label, node) && (best < 0 || loads_.load(label, 0) < loads_.load(best, 0)))
        best = label;
    return best;
  }

  const glt_rows& rows_;
  int32_t* labels_;
  const int64_t num_labels_;
  Loads loads_;
  const bool everywhere_;
  int32_t* counts_;
  int64_t* detail_;
  std::vector<int32_t> seen_;
};

template <class Id>
int32_t spread_rows(const glt_rows& rows, const int64_t* values, int32_t width, int64_t* out, int64_t* detail) {
  const Id* neighbors = neighbors_of<Id>(rows);
  const int64_t end = rows.indptr[rows.num_rows];
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    for (int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
      const int64_t id = neighbors[e];
      if (uint64_t(id) >= uint64_t(rows.num_nodes)) return fail(detail, GLT_BAD_ID, row, id);
      if (e + kAhead < end) glt::prefetch(out + neighbors[e + kAhead] * width);
      for (int32_t k = 0; k < width; ++k) out[id * width + k] += values[row * width + k];
    }
  }
  return GLT_OK;
}

bool known(const glt_rows& rows) { return rows.id_bytes == 4 || rows.id_bytes == 8; }

}  // namespace

extern "C" {

int32_t glt_assign_rows(const glt_rows* rows, int32_t* labels, int64_t num_labels, const int32_t* weights,
                        int32_t num_constraints, int64_t* loads, const int64_t* capacity, int32_t everywhere,
                        int32_t* counts, int64_t* moved, int64_t* detail) try {
  if (!known(*rows) || num_constraints < 1) return GLT_BAD_ARG;
  const Loads all(weights, num_constraints, loads, capacity);
  if (rows->id_bytes == 4) return Pass<int32_t>(*rows, labels, num_labels, all, everywhere, counts, detail).run(moved);
  return Pass<int64_t>(*rows, labels, num_labels, all, everywhere, counts, detail).run(moved);
}
GLT_CATCH(detail)

int32_t glt_spread_rows(const glt_rows* rows, const int64_t* values, int32_t width, int64_t* out, int64_t* detail) try {
  if (!known(*rows) || width < 1) return GLT_BAD_ARG;
  return (rows->id_bytes == 4 ? spread_rows<int32_t> : spread_rows<int64_t>)(*rows, values, width, out, detail);
}
GLT_CATCH(detail)

}  // extern "C"
