// The two products of attention for few rows, as in decoding: nothing is packed in memory.
//
// Keys are turned, and values interleaved, in registers, and used at once. Each sum runs over the same
// cells in the same order as in `multiply`, so it is the same to the last bit. What will be read
// next is fetched meanwhile: as many lines as are used, half of them with the keys.
#pragma once

#include "attention_pack.h"
#include "upcoming.h"

// scores[ROWS][KEYS] = queries [ROWS][num_cells] times KEYS keys.
template <typename T, int ROWS, int64_t KEYS>
static void score_few(Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
                      Upcoming& upcoming) {
  for (int64_t key = 0; key < KEYS; key += 16) {
    f32x16 sums[ROWS] = {};
    for (int64_t column = 0; column < num_cells; column += 16) {
      upcoming.fetch(16);
      u32x16 square[16];
      load_square(keys + key, column, square);
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
          const u32x16 cell = u32x16{} + queries.cells[r * queries.stride + column + i];
          sums[r] = add_product<T>(sums[r], cell, square[i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) store(scores.floats + r * scores.stride + key, sums[r]);
  }
}

// out[ROWS][16 VECTORS] = out * factor + weights [ROWS][depth] times values from `column` on.
template <typename T, int ROWS, int VECTORS>
static void mix_few(Cells weights, const uint8_t* const* values, int64_t column, int64_t depth,
                    const float* factors, Floats out, Upcoming& upcoming) {
  f32x16 sums[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++)
      sums[r][v] = load(out.floats + r * out.stride + column + 16 * v) * splat(factors[r]);
  for (int64_t k = 0; k < depth; k++) {
    upcoming.fetch(VECTORS);
    u32x16 cells[VECTORS];
    load_values<T, VECTORS>(values + PER_CELL<T> * k, column, cells);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const u32x16 weight = u32x16{} + weights.cells[r * weights.stride + k];
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; v++) sums[r][v] = add_product<T>(sums[r][v], weight, cells[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++)
      store(out.floats + r * out.stride + column + 16 * v, sums[r][v]);
}

// The same for all columns.
template <typename T, int ROWS>
static void mix_few(Cells weights, const uint8_t* const* values, int64_t depth, int64_t width,
                    const float* factors, Floats out, Upcoming& upcoming) {
  constexpr int WIDE = ROWS <= 2 ? 8 : ROWS <= 4 ? 4 : 2, NARROW = int(PER_CELL<T>);
  int64_t column = 0;
  for (; column + 16 * WIDE <= width; column += 16 * WIDE)
    mix_few<T, ROWS, WIDE>(weights, values, column, depth, factors, out, upcoming);
  for (; column < width; column += 16 * NARROW)
    mix_few<T, ROWS, NARROW>(weights, values, column, depth, factors, out, upcoming);
}
