// Tiles of products with int4 weights, for each number of rows that one can have.
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
template <int ROWS, Asking ASKING>
void Int4Product::multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const {
  constexpr int AT_ONCE = ROWS == 1 ? 4 : 2;
  for (int64_t column = 0; column < PANEL; column += AT_ONCE * LANES) {
    const uint8_t* group = weights + panel * panel_bytes;
    Lanes totals[ROWS][AT_ONCE] = {};
    for (int64_t k = 0; k < rows.width; k += GROUP, group += INT4_GROUP_BYTES) {
      if (column == 0) ask<ASKING, LINES>(next + (group - weights - panel * panel_bytes));
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
// Inline, or the sums would go through memory.
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

template <int ROWS, Asking ASKING>
void Int4Product::multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const {
  const uint8_t* group = weights + panel * panel_bytes;
  Lanes totals[ROWS][VECTORS] = {};
  for (int64_t k = 0; k < rows.width; k += GROUP) {
    ask<ASKING, LINES>(next);
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

void Int4Product::multiply(Asking asking, Span rows, int64_t panel, const uint8_t* next, float* sums) const {
  run_tile_of(*this, asking, rows, panel, next, sums);
}
