// Tiles of products with int4 weights, for each number of rows of a tile.
#include "int4_product.h"
#include "neon_tile.h"

static inline Bytes low_halves(Bytes v) { return v & 15; }
static inline Bytes high_halves(Bytes v) { return (Bytes)((Words)v >> 4) & 15; }

static inline Lanes load_scales(const uint8_t* p) {
  typedef uint16_t Narrow __attribute__((vector_size(LANES * 2)));
  Narrow narrow;
  memcpy(&narrow, p, sizeof narrow);
  return (Lanes)(__builtin_convertvector(narrow, Words) << 16);
}

#if defined(__aarch64__)
template <int ROWS, PrefetchLines PREFETCH>
void Int4Product::multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const {
  constexpr int AT_ONCE = ROWS == 1 ? 4 : 2;
  for (int64_t column = 0; column < PANEL; column += AT_ONCE * LANES) {
    const uint8_t* group = weights + panel * panel_bytes;
    Lanes totals[ROWS][AT_ONCE] = {};
    for (int64_t k = 0; k < rows.width; k += GROUP, group += INT4_GROUP_BYTES) {
      if (column == 0) prefetch<PREFETCH, LINES>(next + (group - weights - panel * panel_bytes));
      neon::ByteSums<ROWS, AT_ONCE> sums;
      neon::add_group(sums, rows.values(row) + k, rows.stride, [&](int64_t step, int v) {
        const uint8_t* both = group + SCALE_BYTES + (step / 2 * PANEL + column + v * LANES) * 4;
        return step % 2 ? vshrq_n_u8(neon::load16(both), 4) : vandq_u8(neon::load16(both), vdupq_n_u8(15));
      });
      neon::unrolled<AT_ONCE>([&](auto v) {
        const Lanes scale = load_scales(group + (column + v * LANES) * 2);
        neon::unrolled<ROWS>([&](auto r) {
          const Ints offset = Ints{} + rows.group_offsets(row + r)[k / GROUP];
          totals[r][v] = multiply_add(to_floats((Ints)sums.of(r, v) + offset), scale, totals[r][v]);
        });
      });
    }
    neon::unrolled<ROWS>([&](auto r) {
      neon::unrolled<AT_ONCE>([&](auto v) {
        const Lanes value = totals[r][v] * rows.scale(row + r);
        memcpy(y + r * PANEL + column + v * LANES, &value, sizeof value);
      });
    });
  }
}
#else
// Must be inlined, or the sums would go through memory.
template <int ROWS>
inline __attribute__((always_inline)) void Int4Product::multiply_group(int64_t row, int64_t k,
                                                                       const uint8_t* halves,
                                                                       Ints (&sums)[ROWS][VECTORS]) const {
  const int8_t* q = rows.values(row) + k;
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++)
      sums[r][v] = Ints{} + rows.group_offsets(row + r)[k / GROUP];
  for (int i = 0; i < GROUP / 8; i++) {
    Bytes low[VECTORS], high[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
      const Bytes both = load_bytes(halves + (i * PANEL + v * LANES) * 4);
      low[v] = low_halves(both);
      high[v] = high_halves(both);
    }
    for (int r = 0; r < ROWS; r++) {
      const int8_t* eight = q + r * rows.stride + i * 8;
      for (int v = 0; v < VECTORS; v++)
        sums[r][v] = dot(dot(sums[r][v], low[v], four_bytes(eight)), high[v], four_bytes(eight + 4));
    }
  }
}

template <int ROWS, PrefetchLines PREFETCH>
void Int4Product::multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const {
  const uint8_t* group = weights + panel * panel_bytes;
  Lanes totals[ROWS][VECTORS] = {};
  for (int64_t k = 0; k < rows.width; k += GROUP) {
    prefetch<PREFETCH, LINES>(next);
    Ints sums[ROWS][VECTORS];
    multiply_group<ROWS>(row, k, group + SCALE_BYTES, sums);
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
      const Lanes scale = load_scales(group + v * LANES * 2);
      for (int r = 0; r < ROWS; r++)
        totals[r][v] = multiply_add(to_floats(sums[r][v]), scale, totals[r][v]);
    }
    group += INT4_GROUP_BYTES;
    next += INT4_GROUP_BYTES;
  }
  for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
      const Lanes value = totals[r][v] * rows.scale(row + r);
      memcpy(y + r * PANEL + v * LANES, &value, sizeof value);
    }
  }
}
#endif

// Unpacks a group to [8 steps][32][4], the layout of int8 weights.
static void unpack_group(const uint8_t* halves, uint8_t* bytes) {
  for (int64_t at = 0; at < GROUP / 2 * PANEL; at += LANES * 4) {
    const Bytes both = load_bytes(halves + at), low = low_halves(both), high = high_halves(both);
    uint8_t* step = bytes + at / STEP_BYTES * 2 * STEP_BYTES + at % STEP_BYTES;
    memcpy(step, &low, sizeof low);
    memcpy(step + STEP_BYTES, &high, sizeof high);
  }
}

// y [rows][32] += the sums of a group times its scales.
static void add_group(const int32_t* sums, const uint8_t* scales, Span of, int64_t number, const Int8Rows& rows,
                      float* y) {
  for (int64_t column = 0; column < PANEL; column += LANES) {
    const Lanes scale = load_scales(scales + column * 2);
    for (int64_t r = 0; r < of.end - of.begin; r++) {
      Ints sum;
      Lanes total;
      memcpy(&sum, sums + r * PANEL + column, sizeof sum);
      memcpy(&total, y + r * PANEL + column, sizeof total);
      total = multiply_add(to_floats(sum + rows.group_offsets(of.begin + r)[number]), scale, total);
      memcpy(y + r * PANEL + column, &total, sizeof total);
    }
  }
}

void Int4Product::multiply_by_tiles(PrefetchLines lines, Span of, int64_t panel, const uint8_t* next, float* y) const {
  constexpr int64_t STEPS = GROUP / 4, LINE = 64;
  alignas(64) uint8_t bytes[STEPS * STEP_BYTES];
  alignas(64) int32_t sums[AMX_ROWS * PANEL];
  const int64_t count = of.end - of.begin;
  const uint8_t* group = weights + panel * panel_bytes;
  std::fill(y, y + count * PANEL, 0.0f);
  for (int64_t k = 0; k < rows.width; k += GROUP, group += INT4_GROUP_BYTES, next += INT4_GROUP_BYTES) {
    unpack_group(group + SCALE_BYTES, bytes);
    const TilePrefetch ahead{reinterpret_cast<const char*>(next),
                           lines == PrefetchLines::NONE ? 0 : INT4_GROUP_BYTES / STEPS,
                           lines == PrefetchLines::HALF ? 2 * LINE : LINE};
    multiply_int8_by_tiles(count, {rows.values(of.begin) + k, rows.stride, bytes, STEPS}, ahead, sums);
    add_group(sums, group, of, k / GROUP, rows, y);
  }
  for (int64_t r = 0; r < count; r++)
    for (int64_t column = 0; column < PANEL; column++) y[r * PANEL + column] *= rows.scale(of.begin + r);
}

void Int4Product::multiply(PrefetchLines lines, Span rows, int64_t panel, const uint8_t* next, float* sums) const {
  if (multiplies_by_tiles(rows.end - rows.begin)) return multiply_by_tiles(lines, rows, panel, next, sums);
  run_tile_of(*this, lines, rows, panel, next, sums);
}
