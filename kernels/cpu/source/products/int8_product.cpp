// Tiles of products with int8 weights, for each number of rows of a tile.
#include "int8_product.h"
#include "neon_tile.h"

inline void Int8Product::store_scaled(Ints sums, int64_t row, int64_t column, float* y) const {
  Lanes scale;
  memcpy(&scale, scales + column, sizeof scale);
  const Lanes value = to_floats(sums) * scale * rows.scale(row);
  memcpy(y, &value, sizeof value);
}

#if defined(__aarch64__)
template <int ROWS, PrefetchLines PREFETCH>
void Int8Product::multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const {
  constexpr int AT_ONCE = neon::vectors_at_once(ROWS);
  for (int64_t column = 0; column < PANEL; column += AT_ONCE * LANES) {
    const uint8_t* u = weights + panel * panel_bytes + column * 4;
    neon::ByteSums<ROWS, AT_ONCE> sums;
    for (int64_t k = 0; k < rows.width; k += GROUP) {
      neon::add_group(sums, rows.values(row) + k, rows.stride, [&](int64_t step, int v) {
        if (v == 0 && column == 0) prefetch<PREFETCH, LINES>(next + (k + 4 * step) * PANEL);
        return neon::weights_of(neon::load16(u + (k + 4 * step) * PANEL + v * LANES * 4));
      });
    }
    neon::unrolled<ROWS>([&](auto r) {
      const Ints offset = Ints{} + (neon::IS_SHIFTED ? rows.offset(row + r) : 0);
      neon::unrolled<AT_ONCE>([&](auto v) {
        const int64_t first = column + v * LANES;
        store_scaled((Ints)sums.of(r, v) + offset, row + r, panel * PANEL + first, y + r * PANEL + first);
      });
    });
  }
}
#else
template <int ROWS, PrefetchLines PREFETCH>
void Int8Product::multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const {
  const uint8_t* u = weights + panel * panel_bytes;
  const int8_t* q = rows.values(row);
  Ints sums[ROWS][VECTORS];
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) sums[r][v] = Ints{} + rows.offset(row + r);
  for (int64_t k = 0; k < rows.width; k += 4) {
    Bytes w[VECTORS];
#pragma GCC unroll 8  // as one copy, they would go through memory
    for (int v = 0; v < VECTORS; v++) w[v] = load_bytes(u + k * PANEL + v * LANES * 4);
    prefetch<PREFETCH, LINES>(next + k * PANEL);
    for (int r = 0; r < ROWS; r++) {
      const int32_t four = four_bytes(q + r * rows.stride + k);
      for (int v = 0; v < VECTORS; v++) sums[r][v] = dot(sums[r][v], w[v], four);
    }
  }
  for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++)
      store_scaled(sums[r][v], row + r, panel * PANEL + v * LANES, y + r * PANEL + v * LANES);
  }
}
#endif

void Int8Product::multiply_by_tiles(PrefetchLines lines, Span of, int64_t panel, const uint8_t* next,
                                    float* y) const {
  constexpr int64_t LINE = 64;
  int32_t* const sums = reinterpret_cast<int32_t*>(y);  // each becomes a float in its place
  const int64_t count = of.end - of.begin, num_tiles = (count + AMX_ROWS - 1) / AMX_ROWS;
  const TileFactors factors{rows.values(of.begin), rows.stride, weights + panel * panel_bytes, rows.width / 4};
  const TilePrefetch ahead{reinterpret_cast<const char*>(next),
                           lines == PrefetchLines::NONE ? 0 : LINES * LINE / num_tiles, LINE};
  multiply_int8_by_tiles(count, factors, ahead, sums);
  for (int64_t r = 0; r < count; r++)
    for (int64_t column = 0; column < PANEL; column += LANES) {
      Ints of_columns;
      memcpy(&of_columns, sums + r * PANEL + column, sizeof of_columns);
      store_scaled(of_columns + rows.offset(of.begin + r), of.begin + r, panel * PANEL + column,
                   y + r * PANEL + column);
    }
}

void Int8Product::multiply(PrefetchLines lines, Span rows, int64_t panel, const uint8_t* next, float* sums) const {
  if (multiplies_by_tiles(rows.end - rows.begin)) return multiply_by_tiles(lines, rows, panel, next, sums);
  run_tile_of(*this, lines, rows, panel, next, sums);
}
