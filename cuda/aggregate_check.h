// Checks of the arguments of an aggregation, and dispatch on its dtype; on the host, for the CPU and for devices.
#pragma once
#include <glt/aggregate.h>

#include "aggregate_bodies.h"
#include "graph.h"

namespace glt {

inline bool is_extreme(int32_t kind) { return kind == GLT_AGGREGATE_MAX || kind == GLT_AGGREGATE_MIN; }

inline int32_t check_call(const glt_edges& e, int32_t kind, bool weighted, int64_t* detail) {
  if (kind < GLT_AGGREGATE_SUM || kind > GLT_AGGREGATE_MIN || (weighted && is_extreme(kind)))
    return fail(detail, GLT_BAD_ARG, 0, kind);
  if (e.values < GLT_VALUES_FLOAT32 || e.values > GLT_VALUES_BFLOAT16) return fail(detail, GLT_BAD_ARG, 1, e.values);
  if (e.num_rows < 0 || e.num_sources < 0 || e.num_edges < 0 || e.width < 0 || e.heads < 1 || e.width % e.heads)
    return fail(detail, GLT_BAD_ARG, 2, e.width, e.heads);
  if (!e.src && e.num_edges && e.num_sources != e.num_edges) return fail(detail, GLT_BAD_ARG, 3, e.num_sources, e.num_edges);
  return GLT_OK;
}

// Calls body(a value of the type that the edges' rows have).
template <class Body>
void for_values(const glt_edges& e, const Body& body) {
  if (e.values == GLT_VALUES_FLOAT32) body(float());
  if (e.values == GLT_VALUES_FLOAT64) body(double());
  if (e.values == GLT_VALUES_BFLOAT16) body(Brain());
}

}  // namespace glt
