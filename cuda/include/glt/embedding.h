// Trained rows: sums of the gradients of each row, and the steps of the sparse optimizers. Conventions as in api.h.
//
// Float32 in a fixed order and without fused multiply-add, so that the bits depend on neither threads nor processor. No row is
// written by two threads, because `rows` ascend.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

// Gradients of the rows of one table, as glt_merge_rows returns them. Before they are used they are divided by `divisor`, or by
// the count of the row; multiplied by `factor`; then each value is cut to [-clip_value, clip_value]; then each row scaled down to
// the norm `clip_norm`.
typedef struct {
  int64_t num_rows;         // R: of the table
  int64_t width;            // D
  int64_t n;                // rows with a gradient
  const int64_t* rows;      // [n], ascending, each once
  const void* values;       // float [* * D]
  const int64_t* at;        // [n], the position in `values` of each row; null: values are in the order of the rows
  const int64_t* counts;    // [n], the divisor of each row; null: `divisor` for all
  const void* adjust;       // double [4]: factor, clip_value, clip_norm, divisor; infinity: no clipping
} glt_row_gradients;

// Merges equal rows of rows [n]: each different row once, ascending, with the sum of its values, added in the order in which they
// come. values float [n * width].  counts [n] or null: the number of occurrences that each value stands for; null: 1.
// merged [n], sums float [n * width], merged_counts [n]: of each, the first *num are written.
// at [n]: if all rows differ, that is *num = n, the position of each in `rows`; `sums` is not written then.
GLT_API int32_t glt_merge_rows(const int64_t* rows, const void* values, const int64_t* counts, int64_t n, int64_t width,
                               int64_t* merged, void* sums, int64_t* merged_counts, int64_t* at, int64_t* num,
                               int32_t threads, int64_t* detail);

// squares double [n]: of each row, once divided, the sum of squares: eight sums of every eighth value, then of those
// ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
GLT_API int32_t glt_row_squares(const glt_row_gradients* gradients, void* squares, int32_t threads, int64_t* detail);

// The steps. weight float [R * D].  GLT_BAD_ID, detail = {position, row}: no row of the table.  GLT_BAD_ARG, detail =
// {position, row}: rows do not ascend.  Nothing is written then.

// rule double [1]: lr.    w -= lr * g
GLT_API int32_t glt_sgd_rows(const glt_row_gradients* gradients, void* weight, const void* rule, int32_t threads,
                             int64_t* detail);

// rule double [2]: lr, eps.  sums float [R * D], or [R] with `rowwise`, which adds the mean of g * g, taken in double.
// s += g * g;  w -= lr * (g / (sqrt(s) + eps))
GLT_API int32_t glt_adagrad_rows(const glt_row_gradients* gradients, void* weight, void* sums, int32_t rowwise,
                                 const void* rule, int32_t threads, int64_t* detail);

// rule double [4]: lr, beta1, beta2, eps.  first, second float [R * D]: the moments.
// m += (g - m) * (1 - beta1);  v += (g * g - v) * (1 - beta2)
// step = 0: t = ++steps[row], int32 [R];  w -= lr * ((m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps))
// step > 0: t = step, of all rows, as torch.optim.SparseAdam;  w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * (m / (sqrt(v) + eps))
// Powers by repeated squaring in double, each correction rounded to float once.
GLT_API int32_t glt_adam_rows(const glt_row_gradients* gradients, void* weight, void* first, void* second, void* steps,
                              int64_t step, const void* rule, int32_t threads, int64_t* detail);

#ifdef __cplusplus
}
#endif
