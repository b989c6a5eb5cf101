/* The limit of memory for rows that train: random distinct rows of float32 are copied (a lookup), and then a gradient is added to
 * the row of one, two or three tables (steps with no state, one, two), with prefetch and reused memory.
 *
 *   cc -O3 -march=native row_bound.c -o row_bound && ./row_bound ROWS WIDTH BATCH ROUNDS
 *
 * One JSON line for each: M rows per CPU second, the best round. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AHEAD 8

static double cpu_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

static void fetch(const float *row, int64_t width) {
  for (int64_t k = 0; k < width; k += 16) __builtin_prefetch(row + k, 1);
}

static float *filled(int64_t count) {
  float *made = malloc(count * sizeof(float));
  for (int64_t i = 0; i < count; i++) made[i] = i % 7;
  return made;
}

int main(int argc, char **argv) {
  if (argc != 5) return fprintf(stderr, "row_bound ROWS WIDTH BATCH ROUNDS\n"), 2;
  int64_t rows = atoll(argv[1]), width = atoll(argv[2]), batch = atoll(argv[3]), rounds = atoll(argv[4]);
  static const char *ways[] = {"lookup, limit", "lookup + sgd, limit", "lookup + adagrad, limit", "lookup + adam, limit"};
  float *tables[3], *values = filled(batch * width), *found = filled(batch * width);
  for (int t = 0; t < 3; t++) tables[t] = filled(rows * width);
  int64_t *ids = malloc((batch + AHEAD) * sizeof(int64_t)), *all = malloc(rows * sizeof(int64_t));
  for (int64_t i = 0; i < rows; i++) all[i] = i;
  srand48(1);
  for (int64_t i = 0; i < batch; i++) {
    int64_t other = i + (int64_t)(drand48() * (rows - i)), kept = all[i];
    all[i] = all[other], all[other] = kept;
  }
  memcpy(ids, all, batch * sizeof(int64_t));
  memset(ids + batch, 0, AHEAD * sizeof(int64_t));
  for (int way = 0; way < 4; way++) {
    double best = 1e9;
    for (int64_t round = 0; round < rounds; round++) {
      double begin = cpu_s();
      for (int64_t i = 0; i < batch; i++) {
        fetch(tables[0] + ids[i + AHEAD] * width, width);
        memcpy(found + i * width, tables[0] + ids[i] * width, width * sizeof(float));
      }
      for (int64_t i = 0; way && i < batch; i++) {
        float *value = values + i * width;
        for (int t = 0; t < way; t++) {
          fetch(tables[t] + ids[i + AHEAD] * width, width);
          float *restrict row = tables[t] + ids[i] * width;
          for (int64_t k = 0; k < width; k++) row[k] += value[k];
        }
      }
      double took = cpu_s() - begin;
      best = took < best ? took : best;
    }
    printf("{\"way\": \"%s\", \"m_rows_per_cpu_s\": %.4f}\n", ways[way], batch / best / 1e6);
  }
  return 0;
}
