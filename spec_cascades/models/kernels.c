// Products of a few rows with a large matrix, and attention of a few nodes, both
// float32, as XLA custom calls: what kernels.py says. A matrix may be held as
// bfloat16, the upper halves of its float32 numbers: it is multiplied as float32.
//
// A result of a product is one sum over the depth, in order, in one lane of a
// vector (`columns`), or one such sum a lane and then a sum of the lanes (`dots`):
// the same bits whatever the number of rows and of threads, and the place of the row.
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "xla/ffi/api/c_api.h"

// A tile of ROWS x VECTORS sums fills the registers, but for a few; one of dots has
// LANES sums of at most MOST rows, or as many as there are rows.
#if defined(__AVX512F__)
enum { LANES = 16, VECTORS = 2, ROWS = 12, MOST = 8 };
#elif defined(__AVX__)
enum { LANES = 8, VECTORS = 2, ROWS = 5, MOST = 4 };
#else
enum { LANES = 4, VECTORS = 2, ROWS = 8, MOST = 8 };
#endif
enum { WIDTH = LANES * VECTORS };
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "lower halves come first");
_Static_assert(VECTORS == 2, "pairs of halves are two vectors");
_Static_assert(MOST <= ROWS && ROWS <= 12, "attention's rows are one tile's");
enum { AHEAD = 16384 };     // bytes that are fetched ahead
enum { CHUNK = 4096 };      // floats that a thread should read at least
enum { PATIENCE = 6000 };   // ns that a thread waits for others to begin
enum { LINGER = 50000 };    // ns that it waits for more work
enum { TURN = 2000000 };    // ns after which it waits no more
enum { SEATS = 16 };        // threads that may wait at once

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2)));
#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
#define EACH(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12)

INLINE Vector load(const float *p) { return *(const Vector *)p; }

// `count` numbers, and 0 behind them; floats or, if `half`, their upper halves.
INLINE Vector some_of(const bool half, const char *p, const long count) {
  _Alignas(64) char filled[4 * LANES] = {0};
  if (count < LANES) p = memcpy(filled, p, count * (half ? 2 : 4));
  return half ? (Vector)(__builtin_convertvector(*(const Halves *)p, Whole) << 16)
              : load((const float *)p);
}

// ---------------------------------------------------------------- tiles

// y = x w, with rows of x, w and y so many numbers apart. w is float or, if `half`,
// uint16_t: the upper halves of floats.
typedef struct {
  const float *x;
  const void *w;
  float *y;
  long depth, across_x, across_w, across_y;
  bool half;
} Tile;

// `rows` x `width` <= WIDTH results; w is [depth, WIDTH], of which all is read. Halves
// lie as a vector of pairs: of the first LANES columns the lower half of each pair.
INLINE void columns(const int rows, const bool half, const Tile t, long width) {
  Vector sums[ROWS][VECTORS] = {0};
#pragma GCC unroll 4
  for (long k = 0; k < t.depth; ++k) {
    Vector weights[VECTORS];
    if (half) {
      const uint16_t *w = (const uint16_t *)t.w + k * t.across_w;
      const Whole pairs = *(const Whole *)w;
      weights[0] = (Vector)(pairs << 16);
      weights[1] = (Vector)(pairs & (int32_t)0xffff0000);
      __builtin_prefetch((const char *)w + AHEAD);
    } else {
      for (int v = 0; v < VECTORS; ++v) {
        const float *w = (const float *)t.w + k * t.across_w + v * LANES;
        weights[v] = load(w);
        __builtin_prefetch((const char *)w + AHEAD);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < VECTORS; ++v)
        sums[r][v] += weights[v] * t.x[r * t.across_x + k];
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    Vector whole[VECTORS];
    float *y = t.y + r * t.across_y, *out = width < WIDTH ? (float *)whole : y;
    for (int v = 0; v < VECTORS; ++v) *(Vector *)(out + v * LANES) = sums[r][v];
    if (width < WIDTH) memcpy(y, whole, 4 * width);
  }
}

// Of the lanes of [A, B], in groups of H, every other group: the first (S 0), the
// third, ..., or (S 1) the second, the fourth, ...
#define PLACE(H, S, I) (I) / (H) * 2 * (H) + (I) % (H) + (S) * (H)
#define FOUR(H, S, I) \
  PLACE(H, S, I), PLACE(H, S, I + 1), PLACE(H, S, I + 2), PLACE(H, S, I + 3)
#if defined(__AVX512F__)
#define PLACES(H, S) FOUR(H, S, 0), FOUR(H, S, 4), FOUR(H, S, 8), FOUR(H, S, 12)
#elif defined(__AVX__)
#define PLACES(H, S) FOUR(H, S, 0), FOUR(H, S, 4)
#else
#define PLACES(H, S) FOUR(H, S, 0)
#endif
#if defined(__clang__)
#define GROUPS(A, B, H, S) __builtin_shufflevector(A, B, PLACES(H, S))
#else
#define GROUPS(A, B, H, S) __builtin_shuffle(A, B, (Whole){PLACES(H, S)})
#endif

// The sums of the lanes of each of LANES vectors; halves of lanes are added first.
INLINE Vector folded(Vector s[LANES]) {
#define FOLD(H)                                                                 \
  for (int i = 0; i < H; ++i)                                                    \
    s[i] = GROUPS(s[2 * i], s[2 * i + 1], H, 0) + GROUPS(s[2 * i], s[2 * i + 1], H, 1);
#if defined(__AVX512F__)
  FOLD(8)
#endif
#if defined(__AVX__)
  FOLD(4)
#endif
  FOLD(2) FOLD(1)
#undef FOLD
  return s[0];
}

// Adds `count` <= LANES products from k on; the sums of a row are `outs`.
INLINE void dots_at(const int rows, const int outs, const bool half, const Tile t,
                    Vector *sums, long k, const long count) {
  Vector weights[LANES];
#pragma GCC unroll 16
  for (int o = 0; o < outs; ++o) {
    const char *w = (const char *)t.w + (o * t.across_w + k) * (half ? 2 : 4);
    weights[o] = some_of(half, w, count);
    __builtin_prefetch(w + AHEAD);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const float *x = t.x + r * t.across_x + k;
    const Vector values = some_of(false, (const char *)x, count);
#pragma GCC unroll 16
    for (int o = 0; o < outs; ++o) sums[r * outs + o] += weights[o] * values;
  }
}

// `rows` x `outs` results, of which there are at most LANES or that are `rows`; w is
// [outs, depth].
INLINE void dots(const int rows, const int outs, const bool half, const Tile t) {
  Vector sums[MOST + LANES] = {0};
  long k = 0;
  for (; k + LANES <= t.depth; k += LANES)
    dots_at(rows, outs, half, t, sums, k, LANES);
  if (k < t.depth) dots_at(rows, outs, half, t, sums, k, t.depth - k);
  for (int i = 0; i < rows * outs; i += LANES) {
    const Vector found = folded(sums + i);
    const int end = i + LANES < rows * outs ? i + LANES : rows * outs;
#pragma GCC unroll 16
    for (int j = i; j < end; ++j)
      t.y[j / outs * t.across_y + j % outs] = found[j - i];
  }
}

// `columns` of at most ROWS rows, and `dots` of at most MOST with many outs.
APART void some_columns(long rows, const Tile t, long width) {
#define CASE(N) case N: if (N <= ROWS) columns(N, false, t, width); break;
#define HALF(N) case N: if (N <= ROWS) columns(N, true, t, width); break;
  if (t.half) switch (rows) { EACH(HALF) }
  else switch (rows) { EACH(CASE) }
#undef HALF
#undef CASE
}

APART void some_dots(long rows, Tile t, long outs) {
#define STEP(N, M, H)                                                      \
  for (long o = 0; o < outs; o += M) {                                     \
    const long at = o + M <= outs ? o : outs - M;                          \
    Tile part = t;                                                         \
    part.w = (const char *)t.w + at * t.across_w * (H ? 2 : 4);            \
    part.y += at;                                                          \
    dots(N, M, H, part);                                                   \
  }
#define BOTH(N, H) case N: if (N <= MOST) {                                \
    enum { M = N < LANES ? LANES / N : 1 };                                \
    if (outs < M) STEP(N, 1, H) else STEP(N, M, H) } break;
#define CASE(N) BOTH(N, false)
#define HALF(N) BOTH(N, true)
  if (t.half) switch (rows) { EACH(HALF) }
  else switch (rows) { EACH(CASE) }
#undef HALF
#undef CASE
#undef BOTH
#undef STEP
}

// ---------------------------------------------------------------- work

// Units that threads take in parts of `size`. Who comes too late finds none left:
// the first thread waits a little for those that have not begun, and does their part
// if that was in vain.
typedef struct Work {
  bool (*some)(const struct Work *, long, long);
  const void *arrays[5];
  float *y;
  long shape[6];
  float cap;
  long units, size;
  atomic_long next, done;
  atomic_int holders;
  atomic_bool failed;
} Work;

static bool take(Work *work) {
  const long start = atomic_fetch_add(&work->next, work->size);
  long end = start + work->size;
  if (start >= work->units) return false;
  end = end < work->units ? end : work->units;
  if (!work->some(work, start, end)) atomic_store(&work->failed, true);
  atomic_fetch_add(&work->done, end - start);
  return true;
}

static void let_go(Work *work) {
  if (atomic_fetch_sub(&work->holders, 1) == 1) free(work);
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void pause_a_little(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

// To wake a thread of XLA's pool takes longer than many a product. So one that has
// helped takes a seat and waits for more work, which is then handed to it there. It
// leaves its processor to whoever else needs it, and its thread to the pool if others
// of our tasks wait for one, and after a TURN.
typedef struct { _Alignas(64) _Atomic(Work *) work; } Seat;   // NULL: nobody is there
static Seat seats[SEATS];
static Work none;                        // what is there while somebody waits
static atomic_long scheduled;            // tasks of ours that have not begun
static _Thread_local bool scheduling;    // XLA may run a task at once, in the caller

static bool handed(Work *work) {
  for (long i = 0; i < SEATS; ++i) {
    Work *there = &none;
    if (atomic_load(&seats[i].work) == &none &&
        atomic_compare_exchange_strong(&seats[i].work, &there, work)) return true;
  }
  return false;
}

static Seat *take_seat(void) {
  for (long i = 0; i < SEATS; ++i) {
    Work *there = NULL;
    if (atomic_compare_exchange_strong(&seats[i].work, &there, &none))
      return &seats[i];
  }
  return NULL;
}

// The next work for a thread that may wait until then; NULL if none came.
static Work *wait_for_work(int64_t until) {
  Seat *seat = take_seat();
  if (!seat) return NULL;
  const int64_t most = nanoseconds() + LINGER;
  if (most < until) until = most;
  for (long i = 1; atomic_load(&seat->work) == &none; ++i) {
    pause_a_little();
    if (i % 16) continue;
    sched_yield();
    if (nanoseconds() > until) break;
  }
  Work *work = atomic_exchange(&seat->work, NULL);
  return work == &none ? NULL : work;
}

static void help(void *given) {
  const int64_t until = nanoseconds() + TURN;
  Work *work = given;
  atomic_fetch_sub(&scheduled, 1);
  while (work) {
    while (take(work)) {}
    let_go(work);
    const bool free = !scheduling && atomic_load(&scheduled) == 0;
    work = free && nanoseconds() < until ? wait_for_work(until) : NULL;
  }
}

static XLA_FFI_Error *refuse(XLA_FFI_CallFrame *call, const char *message) {
  XLA_FFI_Error_Create_Args args = {
      .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
      .message = message, .errc = XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return call->api->XLA_FFI_Error_Create(&args);
}

// Does the work on all threads of the pool, each at least CHUNK floats.
static XLA_FFI_Error *finish(XLA_FFI_CallFrame *call, const Work like,
                             long floats) {
  Work *work = malloc(sizeof *work);
  if (!work) return refuse(call, "No memory is left.");
  *work = like;
  int64_t threads = 1;
  XLA_FFI_ThreadPool_NumThreads_Args count = {
      .struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE,
      .ctx = call->ctx, .num_threads = &threads};
  XLA_FFI_Error *error = call->api->XLA_FFI_ThreadPool_NumThreads(&count);
  const long most = floats / CHUNK < work->units ? floats / CHUNK : work->units;
  const long parts = error || most < 2 ? 1 : most < threads ? most : threads;
  work->size = (work->units + parts - 1) / parts;
  atomic_init(&work->next, 0);
  atomic_init(&work->done, 0);
  atomic_init(&work->holders, 1);
  atomic_init(&work->failed, false);
  bool some_wait = true;
  for (long i = 1; i < parts && !error; ++i) {
    XLA_FFI_ThreadPool_Schedule_Args args = {
        .struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE,
        .ctx = call->ctx, .task = help, .data = work};
    atomic_fetch_add(&work->holders, 1);
    some_wait = some_wait && handed(work);
    if (some_wait) continue;
    atomic_fetch_add(&scheduled, 1);
    scheduling = true;
    error = call->api->XLA_FFI_ThreadPool_Schedule(&args);
    scheduling = false;
    if (error) atomic_fetch_sub(&scheduled, 1), let_go(work);
  }
  if (error) {              // no pool: this thread does it all
    XLA_FFI_Error_Destroy_Args args = {
        .struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    call->api->XLA_FFI_Error_Destroy(&args);
  }
  take(work);
  const int64_t soon = nanoseconds() + PATIENCE;
  while (atomic_load(&work->next) < work->units && nanoseconds() < soon)
    pause_a_little();
  while (take(work)) {}
  while (atomic_load(&work->done) < work->units) {
    pause_a_little();
    // So late, a thread with a part may wait for this processor.
    if (nanoseconds() > soon) sched_yield();
  }
  const bool failed = atomic_load(&work->failed);
  let_go(work);
  return failed ? refuse(call, "No memory is left.") : NULL;
}

// ---------------------------------------------------------------- calls

// Whether XLA only asks which version of its interface this was compiled with.
static bool asked(XLA_FFI_CallFrame *call) {
  if (!call->extension_start ||
      call->extension_start->type != XLA_FFI_Extension_Metadata)
    return false;
  XLA_FFI_Metadata *about =
      ((XLA_FFI_Metadata_Extension *)call->extension_start)->metadata;
  about->api_version.major_version = XLA_FFI_API_MAJOR;
  about->api_version.minor_version = XLA_FFI_API_MINOR;
  return true;
}

static const XLA_FFI_Buffer *argument(XLA_FFI_CallFrame *call, long i) {
  return call->args.args[i];
}

static bool is(const XLA_FFI_Buffer *b, XLA_FFI_DataType dtype, long rank) {
  return b->dtype == dtype && b->rank == rank;
}

static bool are(XLA_FFI_CallFrame *call, long count) {
  return call->args.size == count && call->rets.size == 1 &&
         is(call->rets.rets[0], XLA_FFI_DataType_F32,
            count == 2 ? 2 : 3);
}

// x [rows, depth] times panels [P, depth, WIDTH], whose last may be filled up.
static bool panels(const Work *work, long start, long end) {
  const long rows = work->shape[0], depth = work->shape[1];
  const long features = work->shape[2], size = work->shape[3];
  for (long panel = start; panel < end; ++panel)
    for (long row = 0; row < rows; row += ROWS) {
      const Tile t = {(const float *)work->arrays[0] + row * depth,
                      (const char *)work->arrays[1] + panel * depth * WIDTH * size,
                      work->y + row * features + panel * WIDTH,
                      depth, depth, WIDTH, features, size == 2};
      const long left = features - panel * WIDTH;
      some_columns(rows - row < ROWS ? rows - row : ROWS, t, left);
    }
  return true;
}

// x [rows, depth] times the turned w [features, depth].
static bool turned(const Work *work, long start, long end) {
  const long rows = work->shape[0], depth = work->shape[1];
  const long features = work->shape[2], size = work->shape[3];
  for (long row = 0; row < rows; row += MOST) {
    const Tile t = {(const float *)work->arrays[0] + row * depth,
                    (const char *)work->arrays[1] + start * depth * size,
                    work->y + row * features + start,
                    depth, depth, depth, features, size == 2};
    some_dots(rows - row < MOST ? rows - row : MOST, t, end - start);
  }
  return true;
}

static XLA_FFI_Error *product(XLA_FFI_CallFrame *call, bool paneled) {
  if (asked(call)) return NULL;
  if (!are(call, 2)) return refuse(call, "A product takes x and w.");
  const XLA_FFI_Buffer *x = argument(call, 0), *w = argument(call, 1);
  const XLA_FFI_Buffer *y = call->rets.rets[0];
  const bool half = is(w, XLA_FFI_DataType_BF16, 2 + paneled);
  if (!is(x, XLA_FFI_DataType_F32, 2) ||
      !(half || is(w, XLA_FFI_DataType_F32, 2 + paneled)))
    return refuse(call, "A product is of float32 rows, with a matrix of float32 "
                        "or bfloat16.");
  const long unit = paneled ? WIDTH : 1, most = w->dims[0] * unit;
  const long depth = w->dims[1], features = y->dims[1];
  if (x->dims[1] != depth || y->dims[0] != x->dims[0] || features > most ||
      features <= most - unit || (paneled && w->dims[2] != WIDTH))
    return refuse(call, "The shapes of a product do not fit.");
  const Work work = {.some = paneled ? panels : turned,
                     .arrays = {x->data, w->data}, .y = y->data,
                     .shape = {x->dims[0], depth, features, half ? 2 : 4},
                     .units = w->dims[0]};
  return finish(call, work, most * depth);
}

XLA_FFI_Error *PanelProduct(XLA_FFI_CallFrame *call) { return product(call, true); }
XLA_FFI_Error *TurnedProduct(XLA_FFI_CallFrame *call) { return product(call, false); }
int panel_width(void) { return WIDTH; }

// ---------------------------------------------------------------- attention

// e^x of -100 <= x <= 0 to 2 units in the last place; 0 below -87.
INLINE Vector exponential(Vector x) {
  const Vector turns = x * 1.44269504f;             // x / ln 2
  const Vector magic = (Vector){0} + 12582912.0f;   // 1.5 2^23 rounds to a whole
  const Vector whole = turns + magic - magic;
  const Vector r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  Vector y = (Vector){0} + 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const Whole power = __builtin_convertvector(whole, Whole);
  const Whole scaled = (Whole)y + (power << 23);
  return (Vector)(scaled & (power > -126));
}

INLINE Vector larger(Vector a, Vector b) {
  const Whole is = a > b;
  return (Vector)(((Whole)a & is) | ((Whole)b & ~is));
}

// Scores of one node, in place -> weights that add up to 1; of `slots` a multiple
// of LANES, what the node does not see is at -INFINITY. What is not a number makes
// all of them so.
static void softmax(float *score, long slots) {
  Vector top = load(score), total = {0};
  Whole odd = {0};
  for (long s = 0; s < slots; s += LANES) {
    const Vector scores = load(score + s);
    odd |= scores != scores;
    top = larger(scores, top);
  }
  float most = -INFINITY, sum = 0;
  for (int i = 0; i < LANES; ++i) most = top[i] > most ? top[i] : most;
  for (long s = 0; s < slots; s += LANES) {
    const Vector shifted = load(score + s) - most;
    odd |= shifted != shifted;
    const Vector e = exponential(larger(shifted, (Vector){0} - 100));
    *(Vector *)(score + s) = e;
    total += e;
  }
  for (int i = 0; i < LANES; ++i) sum += odd[i] ? NAN : total[i];
  for (long s = 0; s < slots; s += LANES)
    *(Vector *)(score + s) = load(score + s) / sum;
}

// One past the last slot that any of the nodes sees; all if a node sees none.
static long seen_by(const uint8_t *mask, long nodes, long slots) {
  long most = 0;
  for (long n = 0; n < nodes; ++n) {
    long end = slots;
    while (end && !mask[n * slots + end - 1]) --end;
    if (!end) return slots;
    most = end > most ? end : most;
  }
  return most;
}

// Units are pairs of a row and a head.
static bool heads(const Work *work, long start, long end) {
  const long nodes = work->shape[0], count = work->shape[1];
  const long width = work->shape[2], slots = work->shape[3];
  const long groups = work->shape[4], biases = work->shape[5];
  const long padded = (slots + LANES - 1) / LANES * LANES;
  float *scores = aligned_alloc(64, (MOST * padded * 4 + 63) / 64 * 64);
  if (!scores) return false;
  for (long unit = start; unit < end; ++unit) {
    const long b = unit / count, h = unit % count;
    const long memory = (b * groups + h / (count / groups)) * slots * width;
    const float *key = (const float *)work->arrays[1] + memory;
    const float *value = (const float *)work->arrays[2] + memory;
    for (long n = 0; n < nodes; n += MOST) {
      const long rows = nodes - n < MOST ? nodes - n : MOST;
      const long at = ((b * nodes + n) * count + h) * width;
      const uint8_t *mask =
          (const uint8_t *)work->arrays[4] + (b * nodes + n) * slots;
      const long used = seen_by(mask, rows, slots);
      const long filled = (used + LANES - 1) / LANES * LANES;
      const long scored = filled < slots ? filled : slots;
      some_dots(rows, (Tile){(const float *)work->arrays[0] + at, key, scores,
                             width, count * width, width, padded, false}, scored);
      for (long r = 0; r < rows; ++r) {
        float *score = scores + r * padded;
        const float *bias = (const float *)work->arrays[3] +
            (((biases == 1 ? 0 : b) * count + h) * nodes + n + r) * slots;
        bool sees = false;
        for (long s = 0; s < used; ++s) {
          sees |= mask[r * slots + s];
          if (work->cap > 0) score[s] = work->cap * tanhf(score[s] / work->cap);
          if (biases) score[s] += bias[s];
          if (!mask[r * slots + s]) score[s] = -INFINITY;
        }
        for (long s = used; s < filled; ++s) score[s] = -INFINITY;
        if (sees) {
          softmax(score, filled);
        } else {            // all slots alike, of which `used` are then all
          for (long s = 0; s < used; ++s) score[s] = 1.0f / slots;
        }
      }
      for (long d = 0; d < width; d += WIDTH)
        some_columns(rows, (Tile){scores, value + d, work->y + at + d, used,
                                  padded, width, count * width, false},
                     width - d);
    }
  }
  free(scores);
  return true;
}

// query [B, N, H, D], key and value [B, K, S, D], bias [B or 1 or 0, H, N, S], mask
// [B, N, S], cap [] (0: none) -> [B, N, H D]. D is a multiple of WIDTH.
XLA_FFI_Error *Attention(XLA_FFI_CallFrame *call) {
  if (asked(call)) return NULL;
  if (!are(call, 6)) return refuse(call, "Attention takes six arrays.");
  const XLA_FFI_Buffer *query = argument(call, 0), *key = argument(call, 1);
  const XLA_FFI_Buffer *value = argument(call, 2), *bias = argument(call, 3);
  const XLA_FFI_Buffer *mask = argument(call, 4), *cap = argument(call, 5);
  const XLA_FFI_Buffer *y = call->rets.rets[0];
  for (long i = 0; i < 4; ++i)
    if (!is(argument(call, i), XLA_FFI_DataType_F32, 4))
      return refuse(call, "Attention is of float32 arrays of rank 4.");
  if (!is(mask, XLA_FFI_DataType_PRED, 3) || !is(cap, XLA_FFI_DataType_F32, 0))
    return refuse(call, "Attention takes a mask of rank 3 and a number.");
  const int64_t *q = query->dims, *k = key->dims, *m = mask->dims;
  const int64_t *extra = bias->dims;
  const long rows = q[0], nodes = q[1], count = q[2], width = q[3], slots = k[2];
  if (k[0] != rows || k[1] < 1 || slots < 1 || count % k[1] || k[3] != width ||
      width % WIDTH ||
      memcmp(k, value->dims, 4 * sizeof *k) || m[0] != rows || m[1] != nodes ||
      m[2] != slots || (extra[0] && extra[0] != 1 && extra[0] != rows) ||
      (extra[0] && (extra[1] != count || extra[2] != nodes || extra[3] != slots)) ||
      y->dims[0] != rows || y->dims[1] != nodes || y->dims[2] != count * width)
    return refuse(call, "The shapes of attention do not fit.");
  const Work work = {
      .some = heads,
      .arrays = {query->data, key->data, value->data, bias->data, mask->data},
      .y = y->data, .cap = *(const float *)cap->data,
      .shape = {nodes, count, width, slots, k[1], extra[0]},
      .units = rows * count};
  return finish(call, work, rows * count * slots * width);
}
