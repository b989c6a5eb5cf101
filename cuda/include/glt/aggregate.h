// Aggregation over the edges of a batch, which are in the order of their destinations, and its gradients.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLT_VALUES_FLOAT32 0
#define GLT_VALUES_FLOAT64 1
#define GLT_VALUES_BFLOAT16 2  // sums are made in float32 and rounded once

#define GLT_AGGREGATE_SUM 0
#define GLT_AGGREGATE_MEAN 1
#define GLT_AGGREGATE_MAX 2
#define GLT_AGGREGATE_MIN 3

// The edges of destination i are [indptr[i], indptr[i + 1]). Rows of all values are C-contiguous.
typedef struct {
  int64_t num_rows;       // D destinations
  int64_t num_sources;    // S
  int64_t num_edges;      // E, indptr[D] or more
  const int64_t* indptr;  // [D + 1]
  const int64_t* src;     // [E] source of each edge; null: edge e has the source e, and S = E
  int32_t values;         // GLT_VALUES_*
  int32_t threads;
  int64_t width;          // W values in a row of a source
  int64_t heads;          // H, which divides W: weights of an edge, each for W / H values
} glt_edges;

// out [D, W]: sum, mean, maximum or minimum over the edges of x[src]; 0 where there is no edge.
// weights: [E, H], a factor for each edge; null for 1. For sums and means alone.
GLT_API int32_t glt_aggregate(const glt_edges* edges, int32_t kind, const void* x, const void* weights, void* out,
                              int64_t* detail);

// grad_x [S, W] from grad [D, W]. x and out: those of glt_aggregate, for maximum and minimum alone; sources that are
// equal share the gradient, as in torch.
GLT_API int32_t glt_aggregate_grad(const glt_edges* edges, int32_t kind, const void* grad, const void* weights,
                                   const void* x, const void* out, void* grad_x, int64_t* detail);

// grad_weights [E, H] from grad [D, W], for sums and means. Edges behind indptr[D] get 0.
GLT_API int32_t glt_aggregate_weights_grad(const glt_edges* edges, int32_t kind, const void* grad, const void* x,
                                           void* grad_weights, int64_t* detail);

#ifdef __cplusplus
}
#endif
