/* What drawing by weight has to read and to compute, beside a uniform draw: for each row that is not taken whole, its total, and
 * for each pick the prefix sums at it and before it, all fetched ahead. With `chain` also the numbers: one hash for each pick, below
 * what is left, moved past the entries taken before. Nothing is searched and nothing is put in order. `draws.py` calls it.
 *
 * picks: [n, k] positions in the rows.  counts: how many picks of each row. */
#include <stdint.h>

#define POINTERS_AHEAD 48
#define SUMS_AHEAD 24
#define MOST 32

static uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

uint64_t draw_bound(const int64_t *indptr, const int32_t *sums, const int64_t *rows, int64_t n, int32_t k,
                    const uint32_t *picks, const uint8_t *counts, int32_t chain) {
  uint64_t found = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i + POINTERS_AHEAD < n) __builtin_prefetch(indptr + rows[i + POINTERS_AHEAD]);
    if (i + SUMS_AHEAD < n) {
      const int64_t next = i + SUMS_AHEAD;
      if (counts[next]) __builtin_prefetch(sums + indptr[rows[next] + 1] - 1);
      for (int j = 0; j < counts[next]; j++) __builtin_prefetch(sums + indptr[rows[next]] + picks[next * k + j]);
    }
    if (!counts[i]) continue;
    const int32_t *row = sums + indptr[rows[i]];
    uint32_t left = sums[indptr[rows[i] + 1] - 1], begin[MOST], weight[MOST];
    for (int j = 0; j < counts[i]; j++) {
      const uint32_t p = picks[i * k + j], before = p ? row[p - 1] : 0;
      uint32_t mass = left;
      if (chain) {
        mass = (mixed(rows[i] * 977 + j) >> 32) * left >> 32;
        for (int q = 0; q < j; q++) mass += begin[q] <= mass ? weight[q] : 0;
      }
      begin[j] = before, weight[j] = row[p] - before;
      left -= weight[j];
      found += mass;
    }
    found += left;
  }
  return found;
}
