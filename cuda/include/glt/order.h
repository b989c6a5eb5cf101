// The two orders of a batch's edges: column pointers for the order in which they come, and the order by source. And a sort of keys.
// Conventions as in api.h.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

// dst [n] ascending in [0, nodes) -> colptr [nodes + 1]: the edges into node d are those from colptr[d] up to colptr[d + 1].
// GLT_BAD_ARG, detail = {position, dst}: not ascending, or outside.
GLT_API int32_t glt_colptr(const int32_t* dst, int64_t n, int64_t nodes, int64_t* colptr, int64_t* detail);

// Edges src -> dst [n], src in [0, nodes), by source; edges of one source stay in their order.
// rowptr [nodes + 1]; col [n], the destinations; perm [n], the positions that they had.
// GLT_BAD_ARG, detail = {position, src}: outside.
GLT_API int32_t glt_by_source(const int32_t* src, const int32_t* dst, int64_t n, int64_t nodes, int32_t threads,
                              int64_t* rowptr, int64_t* col, int64_t* perm, int64_t* detail);

// Sorts keys [n]; positions [n], or null, move with them, and equal keys stay in their order. Each with a spare array as large.
GLT_API int32_t glt_sort(uint64_t* keys, int64_t* positions, int64_t n, uint64_t* spare_keys, int64_t* spare_positions,
                         int64_t* detail);

#ifdef __cplusplus
}
#endif
