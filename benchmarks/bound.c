/* What one core can do at best: the bound that the measured numbers stand beside.
 *
 *   cc -O3 -pthread bound.c -o bound && ./bound PARTITION FANOUTS BATCH SECONDS [file|huge]
 *
 * PARTITION holds one part. One thread makes whole batches as the package does
 * (the same stages, keyed draws, ascending picks, int64 outputs) with everything general left out: one node type, one
 * edge type, one part, no checks, buffers of the right size, no Python. The arrays are mapped from their files as the
 * package maps them ("file"), or copied into huge pages ("huge").
 *
 * A hop runs in stages over chunks of rows: pick positions, read neighbours, relabel, look up user ids. Each stage is a
 * plain loop whose loads are independent, prefetched a fixed distance ahead into the second-level cache: more are queued than
 * for the first.
 *
 * Prints one JSON line per variant: plain = draws of a sequential generator, no look-ups; keyed = draws keyed by row;
 * n_id = user ids looked up too; e_id = edge ids too; loader = n_id and the rows of x and y gathered; labor = n_id,
 * and rows pick the neighbours whose random numbers are below fan-out / degree (LABOR as in its paper: each row picks
 * so many on average); labor_k = by LABOR the fan-out smallest of each row, as the package picks. And one line with the
 * limits of the memory system. All times are CPU seconds of the thread. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KEYED = 1, N_ID = 2, E_ID = 4, GATHER = 8, LABOR = 16, SMALLEST = 32 }; /* parts of a variant */
enum { CHUNK = 256, AHEAD = 32, MOST_FANOUT = 32, MOST_HOPS = 8 };
#define GOLDEN 0x9e3779b97f4a7c15ull
#define FETCH(p) __builtin_prefetch((const void *)(p), 0, 2)
#define INLINE static inline __attribute__((always_inline))

static double cpu_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
INLINE uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
static void *memory(size_t n, int huge) {
  n = (n + (2 << 20) - 1) >> 21 << 21;
  char *p = mmap(0, n + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) { perror("mmap"); exit(1); }
  p = (char *)(((uintptr_t)p + (2 << 20) - 1) >> 21 << 21);
  madvise(p, n, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  memset(p, 0, n);
  return p;
}

/* ---- the partition's files */

typedef struct { const char *data; size_t bytes; } Array;

static Array load(const char *folder, const char *name, int huge) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.npy", folder, name);
  int fd = open(path, O_RDONLY);
  struct stat st;
  if (fd < 0 || fstat(fd, &st)) { perror(path); exit(1); }
  unsigned char *file = mmap(0, st.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (file == MAP_FAILED) { perror(path); exit(1); }
  close(fd);
  size_t begin = 10 + file[8] + 256 * file[9];
  Array a = {(char *)file + begin, st.st_size - begin};
  if (huge) {
    char *copy = memory(a.bytes, 1);
    memcpy(copy, a.data, a.bytes);
    munmap(file, st.st_size);
    a.data = copy;
  }
  return a;
}

static struct {
  const int64_t *indptr;
  const int32_t *indices, *edge_ids, *user_ids;
  const float *x;
  const int64_t *y;
  const int64_t *train;
  int64_t nodes, edges, seeds, dim, longest;
} G;

static void load_graph(const char *folder, int huge) {
  Array a = load(folder, "part0/edges/0/indptr", huge);
  G.indptr = (const int64_t *)a.data, G.nodes = a.bytes / 8 - 1;
  for (int64_t i = 0; i < G.nodes; i++)
    if (G.indptr[i + 1] - G.indptr[i] > G.longest) G.longest = G.indptr[i + 1] - G.indptr[i];
  a = load(folder, "part0/edges/0/indices", huge);
  G.indices = (const int32_t *)a.data, G.edges = a.bytes / 4;
  G.edge_ids = (const int32_t *)load(folder, "part0/edges/0/edge_ids", huge).data;
  G.user_ids = (const int32_t *)load(folder, "part0/nodes/0/n_id", huge).data;
  a = load(folder, "part0/nodes/0/x", huge);
  G.x = (const float *)a.data, G.dim = a.bytes / 4 / G.nodes;
  G.y = (const int64_t *)load(folder, "part0/nodes/0/y", huge).data;
  a = load(folder, "splits/train", 0);
  int64_t *order = memory(a.bytes, 0), n = G.seeds = a.bytes / 8;
  memcpy(order, a.data, a.bytes);
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t j = mix(i * GOLDEN) % (i + 1), t = order[i];
    order[i] = order[j], order[j] = t;
  }
  G.train = order;
}

/* ---- one batch */

typedef struct { /* a chunk of rows on its way through the stages */
  int32_t count[CHUNK];
  uint32_t position[2 * CHUNK * MOST_FANOUT + AHEAD]; /* by LABOR a row may pick twice its fan-out */
  int32_t neighbour[2 * CHUNK * MOST_FANOUT + AHEAD];
  int64_t first, rows, used;
} Chunk;

typedef struct {
  uint32_t *table; /* one slot per node: base + lid; what is below base belongs to an earlier batch */
  uint32_t base;
  uint64_t sequence;
  int32_t *gid;
  int64_t *n_id, *src, *dst, *e_id, *y;
  float *x;
  int64_t nodes, edges;
  uint8_t *first_bytes; /* of the nodes' random numbers in a hop */
  uint32_t *likely;
  uint64_t *numbers; /* of those entries */
  Chunk chunk;
} Batch;

typedef struct { double all, sample, gather; int64_t batches, nodes, edges; } Sums;

INLINE uint32_t next(Batch *b, uint64_t stream, uint32_t i, uint32_t n, int with) {
  uint64_t bits = with & KEYED ? mix(stream + (i + 1) * GOLDEN) : mix(b->sequence += GOLDEN);
  return (uint32_t)((unsigned __int128)bits * n >> 64);
}

/* Distinct positions in ascending order (Floyd): through a bit set of one word, or sorted by rank, without branches. */
INLINE void pick(Batch *b, uint64_t stream, uint32_t degree, uint32_t fanout, uint32_t begin, uint32_t *out, int with) {
  if (degree <= 64) {
    uint64_t seen = 0;
    for (uint32_t i = 0, j = degree - fanout; i < fanout; i++, j++) {
      uint64_t bit = 1ull << next(b, stream, i, j + 1, with);
      seen |= seen & bit ? 1ull << j : bit;
    }
    for (; seen; seen &= seen - 1) *out++ = begin + __builtin_ctzll(seen);
    return;
  }
  uint32_t q[MOST_FANOUT];
  for (uint32_t i = 0, j = degree - fanout; i < fanout; i++, j++) {
    const uint32_t p = next(b, stream, i, j + 1, with);
    uint32_t hit = 0;
    for (uint32_t k = 0; k < i; k++) hit |= q[k] == p;
    q[i] = hit ? j : p;
  }
  for (uint32_t i = 0; i < fanout; i++) {
    uint32_t rank = 0;
    for (uint32_t k = 0; k < fanout; k++) rank += q[k] < q[i];
    out[rank] = begin + q[i];
  }
}

/* Stage 1: row pointers, and the positions picked. */
INLINE void draw(Batch *b, int64_t end, uint64_t key, uint32_t fanout, int with) {
  Chunk *c = &b->chunk;
  uint32_t *at = c->position;
  for (int64_t i = 0; i < c->rows; i++) {
    const int64_t lid = c->first + i;
    if (lid + AHEAD < end) FETCH(G.indptr + b->gid[lid + AHEAD]);
    const int64_t begin = G.indptr[b->gid[lid]], degree = G.indptr[b->gid[lid] + 1] - begin;
    const uint32_t count = c->count[i] = degree < fanout ? degree : fanout;
    if (degree <= fanout)
      for (uint32_t k = 0; k < count; k++) at[k] = begin + k;
    else
      pick(b, with & KEYED ? mix(key + (with & N_ID ? b->n_id[lid] : b->gid[lid]) * GOLDEN) : 0, degree, fanout, begin, at, with);
    at += count;
  }
  c->used = at - c->position;
  for (int i = 0; i < AHEAD; i++) at[i] = at[-1];
}

INLINE uint64_t number(uint64_t key, int32_t gid) { return mix(key + G.user_ids[gid] * GOLDEN); }

/* The fanout smallest of n numbers, by position: each number's rank is counted, without branches. */
INLINE void take_smallest(const uint64_t *numbers, const uint32_t *likely, uint32_t n, uint32_t fanout, uint32_t *out) {
  for (uint32_t k = 0, count = 0; k < n && count < fanout; k++) {
    uint32_t rank = 0;
    for (uint32_t j = 0; j < n; j++) rank += numbers[j] < numbers[k];
    out[count] = likely[k];
    count += rank < fanout;
  }
}

/* Stage 1 by LABOR. The first byte of a number decides for all but one in 256; for few rows numbers are made as needed. */
INLINE void draw_labor(Batch *b, int64_t end, uint64_t key, uint32_t fanout, int with_bytes, int smallest) {
  Chunk *c = &b->chunk;
  uint32_t *at = c->position;
  for (int64_t i = 0; i < c->rows; i++) {
    const int64_t lid = c->first + i;
    if (lid + AHEAD < end) FETCH(G.indptr + b->gid[lid + AHEAD]);
    if (lid + 4 < end)
      for (int64_t k = 0; k < 8; k++) FETCH(G.indices + G.indptr[b->gid[lid + 4]] + 16 * k);
    const int64_t begin = G.indptr[b->gid[lid]], degree = G.indptr[b->gid[lid] + 1] - begin;
    uint32_t count = 0;
    if (degree <= fanout) {
      for (; count < degree; count++) at[count] = begin + count;
    } else if (smallest) { /* nearly always among those below this share */
      uint32_t n = 0;
      for (double share = (1.4 * fanout + 6) / degree; n < fanout; share *= 2) {
        const uint64_t below = share < 1 ? (uint64_t)(share * 0x1p64) : UINT64_MAX;
        n = 0;
        if (with_bytes)
          for (int64_t k = 0; k < degree; k++) b->likely[n] = begin + k, n += b->first_bytes[G.indices[begin + k]] <= below >> 56;
        else
          for (int64_t k = 0; k < degree; k++) b->likely[n] = begin + k, n += number(key, G.indices[begin + k]) <= below;
      }
      for (uint32_t k = 0; k < n; k++) b->numbers[k] = number(key, G.indices[b->likely[k]]);
      take_smallest(b->numbers, b->likely, n, count = fanout, at);
    } else {
      const uint64_t below = (uint64_t)(((unsigned __int128)fanout << 64) / degree), last = below >> 56;
      uint32_t n = 0, *const likely = b->likely;
      if (with_bytes)
        for (int64_t k = 0; k < degree; k++) likely[n] = begin + k, n += b->first_bytes[G.indices[begin + k]] <= last;
      else
        for (; n < degree; n++) likely[n] = begin + n;
      for (uint32_t k = 0; k < n && count < 2 * MOST_FANOUT; k++) {
        const int32_t id = G.indices[likely[k]];
        at[count] = likely[k];
        count += (with_bytes && b->first_bytes[id] < last) || number(key, id) < below;
      }
    }
    c->count[i] = count;
    at += count;
  }
  c->used = at - c->position;
  for (int i = 0; i < AHEAD; i++) at[i] = at[-1];
}

/* Stage 2: neighbours, and edge ids. */
INLINE void read_neighbours(Batch *b, int with) {
  Chunk *c = &b->chunk;
  for (int i = 0; i < AHEAD; i++) FETCH(G.indices + c->position[i]);
  for (int64_t i = 0; i < c->used; i++) {
    FETCH(G.indices + c->position[i + AHEAD]);
    c->neighbour[i] = G.indices[c->position[i]];
  }
  for (int i = 0; i < AHEAD; i++) c->neighbour[c->used + i] = c->neighbour[c->used - 1];
  if (!(with & E_ID)) return;
  for (int i = 0; i < AHEAD; i++) FETCH(G.edge_ids + c->position[i]);
  for (int64_t i = 0; i < c->used; i++) {
    FETCH(G.edge_ids + c->position[i + AHEAD]);
    b->e_id[b->edges + i] = G.edge_ids[c->position[i]];
  }
}

/* Stage 3: local ids, without branches. */
INLINE void relabel(Batch *b) {
  Chunk *c = &b->chunk;
  const int32_t *at = c->neighbour;
  const uint32_t base = b->base;
  uint32_t *const table = b->table, n = b->nodes;
  int32_t *const gid = b->gid;
  int64_t *src = b->src + b->edges, *dst = b->dst + b->edges;
  for (int i = 0; i < AHEAD; i++) __builtin_prefetch(table + at[i], 1, 3);
  for (int64_t i = 0; i < c->used; i++) {
    __builtin_prefetch(table + at[i + AHEAD], 1, 3);
    const uint32_t slot = table[at[i]], is_new = slot < base, lid = is_new ? n : slot - base;
    table[at[i]] = base + lid;
    gid[n] = at[i];
    n += is_new;
    src[i] = lid;
  }
  for (int64_t i = 0; i < c->rows; i++)
    for (int32_t k = 0; k < c->count[i]; k++) *dst++ = c->first + i;
  b->edges += c->used, b->nodes = n;
}

/* Stage 4: user ids of the new nodes. */
INLINE void look_up(Batch *b, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) {
    FETCH(G.user_ids + b->gid[i + AHEAD < end ? i + AHEAD : i]);
    b->n_id[i] = G.user_ids[b->gid[i]];
  }
}

INLINE void sample(Batch *b, const int64_t *seeds, int64_t num_seeds, uint64_t key, int hops, const int *fanouts, int with) {
  if (b->base > UINT32_MAX - 2 * b->nodes - G.nodes) memset(b->table, 0, G.nodes * 4), b->base = 0;
  b->base += b->nodes + 1;
  b->nodes = b->edges = 0;
  for (int64_t i = 0; i < num_seeds; i++) {
    uint32_t *slot = b->table + seeds[i];
    if (*slot < b->base) *slot = b->base + i;
    b->gid[b->nodes++] = seeds[i];
  }
  if (with & N_ID) look_up(b, 0, num_seeds);
  for (int64_t h = 0, lo = 0, hi = num_seeds; h < hops; h++) {
    uint64_t hop_key = mix(key ^ mix(h + 1));
    const int with_bytes = with & LABOR && (hi - lo) * (G.edges / G.nodes) * 8 > G.nodes;
    if (with_bytes)
      for (int64_t i = 0; i < G.nodes; i++) b->first_bytes[i] = number(hop_key, i) >> 56;
    for (b->chunk.first = lo; b->chunk.first < hi; b->chunk.first += CHUNK) {
      b->chunk.rows = hi - b->chunk.first < CHUNK ? hi - b->chunk.first : CHUNK;
      if (with & LABOR) draw_labor(b, hi, hop_key, fanouts[h], with_bytes, with & SMALLEST);
      else draw(b, hi, hop_key, fanouts[h], with);
      read_neighbours(b, with);
      relabel(b);
    }
    if (with & N_ID) look_up(b, hi, b->nodes);
    lo = hi, hi = b->nodes;
  }
}

static void gather(Batch *b) {
  const int64_t width = G.dim * 4;
  for (int64_t i = 0; i < b->nodes; i++) {
    const float *ahead = G.x + b->gid[i + 16 < b->nodes ? i + 16 : i] * G.dim;
    for (int64_t k = 0; k < G.dim; k += 16) FETCH(ahead + k);
    memcpy(b->x + i * G.dim, G.x + b->gid[i] * G.dim, width);
  }
  for (int64_t i = 0; i < b->nodes; i++) {
    FETCH(G.y + b->gid[i + 2 * AHEAD < b->nodes ? i + 2 * AHEAD : i]);
    b->y[i] = G.y[b->gid[i]];
  }
}

#define CASE(w) case w: sample(b, seeds, n, key, hops, fanouts, w); break
static void make(Batch *b, const int64_t *seeds, int64_t n, uint64_t key, int hops, const int *fanouts, int with, Sums *s) {
  const double start = cpu_s();
  switch (with & ~GATHER) { /* each variant is compiled on its own */
    CASE(0);
    CASE(KEYED);
    CASE(KEYED | N_ID);
    CASE(KEYED | N_ID | E_ID);
    CASE(KEYED | N_ID | LABOR);
    CASE(KEYED | N_ID | LABOR | SMALLEST);
  }
  const double sampled = cpu_s();
  if (with & GATHER) gather(b);
  const double end = cpu_s();
  s->sample += sampled - start, s->gather += end - sampled, s->all += end - start;
  s->batches++, s->nodes += b->nodes, s->edges += b->edges;
}

static void measure(const char *name, int with, int hops, const int *fanouts, int64_t batch, double seconds, const char *pages,
                    const char *fanouts_text) {
  static Batch *b;
  if (!b) {
    int64_t edges = 0, width = batch;
    for (int h = 0; h < hops; h++) edges += width *= fanouts[h];
    const int64_t nodes = edges + batch < G.nodes + batch ? edges + batch : G.nodes + batch;
    b = memory(sizeof *b, 0);
    b->table = memory(G.nodes * 4, 1), b->first_bytes = memory(G.nodes, 0);
    b->likely = memory(G.longest * 4, 0), b->numbers = memory(G.longest * 8, 0);
    b->gid = memory(nodes * 4, 1), b->n_id = memory(nodes * 8, 1), b->y = memory(nodes * 8, 1);
    b->src = memory(edges * 8, 1), b->dst = memory(edges * 8, 1), b->e_id = memory(edges * 8, 1);
    b->x = memory(nodes * G.dim * 4, 1);
  }
  Sums s = {0};
  const int64_t batches = G.seeds / batch;
  for (int64_t i = 0; i < 3 || s.all < seconds; i++) {
    if (i == 3) memset(&s, 0, sizeof s); /* the first ones warm up */
    make(b, G.train + i % batches * batch, batch, mix(i), hops, fanouts, with, &s);
  }
  printf("{\"bench\": \"bound\", \"system\": \"bound\", \"work\": \"%s\", \"fanouts\": \"%s\", \"pages\": \"%s\", \"m_edges_per_cpu_s\": %.2f, \"m_rows_per_cpu_s\": %.2f, "
         "\"sample_ms\": %.2f, \"gather_ms\": %.2f, \"nodes_per_batch\": %.0f, \"edges_per_batch\": %.0f}\n",
         name, fanouts_text, pages, s.edges / s.all / 1e6, s.nodes / s.all / 1e6, s.sample / s.batches * 1e3, s.gather / s.batches * 1e3,
         (double)s.nodes / s.batches, (double)s.edges / s.batches);
  fflush(stdout);
}

/* ---- limits of the memory system, 1 GiB arrays */

static void limits(const char *pages, int huge) {
  enum { N = 4 << 20, ROWS = 1 << 19 };
  const size_t bytes = 1 << 30, rows = bytes / 400;
  volatile size_t width = 400; /* known at run time only, as to a library */
  char *from = memory(bytes, huge), *to = memory(bytes, huge);
  uint32_t *ids = memory(N * 4, 1);
  uint64_t sum = 0;
  double copy = 1e9, read = 1e9, gather_s = 1e9;
  for (int64_t i = 0; i < N; i++) ids[i] = mix(i * GOLDEN) >> 32;
  for (int round = 0; round < 4; round++) {
    double t = cpu_s(), u;
    memcpy(to, from, bytes);
    u = cpu_s() - t, copy = u < copy ? u : copy;
    t = cpu_s();
    for (int64_t i = 0; i < N; i++) {
      FETCH(from + 8 * (ids[i + 32 < N ? i + 32 : i] % (bytes / 8)));
      sum += *(uint64_t *)(from + 8 * (ids[i] % (bytes / 8)));
    }
    u = cpu_s() - t, read = u < read ? u : read;
    t = cpu_s();
    for (int64_t i = 0; i < ROWS; i++) {
      FETCH(from + ids[i + 16] % rows * 400);
      memcpy(to + i * 400, from + ids[i] % rows * 400, width);
    }
    u = cpu_s() - t, gather_s = u < gather_s ? u : gather_s;
  }
  printf("{\"bench\": \"limits\", \"system\": \"machine\", \"pages\": \"%s\", \"memcpy_gb_per_s\": %.2f, \"random_8_byte_m_reads_per_s\": %.1f, "
         "\"random_400_byte_rows_gb_per_s\": %.2f}\n",
         pages, bytes / copy / 1e9, N / read / 1e6, ROWS * 400.0 / gather_s / 1e9 + (sum == 1));
  munmap(from, bytes), munmap(to, bytes);
}

int main(int count, char **arg) {
  if (count == 2 && !strcmp(arg[1], "limits")) return limits("small", 0), limits("huge", 1), 0;
  if (count < 5) return fprintf(stderr, "bound PARTITION FANOUTS BATCH SECONDS [file|huge], or bound limits\n"), 2;
  int fanouts[MOST_HOPS], hops = 0;
  for (char *p = strtok(strdup(arg[2]), ","); p && hops < MOST_HOPS; p = strtok(0, ",")) fanouts[hops++] = atoi(p);
  const char *pages = count > 5 ? arg[5] : "file";
  load_graph(arg[1], !strcmp(pages, "huge"));
  static const struct { const char *name; int with; } variants[] = {
      {"plain", 0}, {"keyed", KEYED}, {"n_id", KEYED | N_ID}, {"e_id", KEYED | N_ID | E_ID}, {"loader", KEYED | N_ID | GATHER},
      {"labor", KEYED | N_ID | LABOR}, {"labor_k", KEYED | N_ID | LABOR | SMALLEST}};
  for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
    measure(variants[v].name, variants[v].with, hops, fanouts, atoll(arg[3]), atof(arg[4]), pages, arg[2]);
  return 0;
}
