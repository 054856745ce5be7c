// Keys and values of a chunk as the products of attention want them.
//
//   keys      rows [keys][cells]  ->  [cells][CHUNK]             turned, 16 x 16 cells at a time
//   values    float32: rows as they are; bfloat16: two rows interleaved, a cell being both at a column
//
// Interleaving works within 16 bytes, so columns come out of order (`unshuffle` puts them back).
#pragma once

#include "attention_products.h"

typedef uint16_t u16x32 __attribute__((vector_size(64)));

// In each 16 bytes: a0 b0 a1 b1, and a2 b2 a3 b3.
static inline u32x16 zip_low(u32x16 a, u32x16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
static inline u32x16 zip_high(u32x16 a, u32x16 b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}

// In each 16 bytes: a0 a1 b0 b1, and a2 a3 b2 b3.
static inline u32x16 join_low(u32x16 a, u32x16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
static inline u32x16 join_high(u32x16 a, u32x16 b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

// Of the 16 bytes of each: a0 a2 b0 b2, and a1 a3 b1 b3.
static inline u32x16 even_lanes(u32x16 a, u32x16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
static inline u32x16 odd_lanes(u32x16 a, u32x16 b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// Rows become columns: 4 x 4 within 16 bytes, and then the sixteens as wholes. Each step leaves what it
// reads as it was, which saves the copies that a general permutation would need.
static inline __attribute__((always_inline)) void transpose(u32x16 (&square)[16]) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    u32x16* row = square + i;
    const u32x16 a = zip_low(row[0], row[1]), b = zip_high(row[0], row[1]);
    const u32x16 c = zip_low(row[2], row[3]), d = zip_high(row[2], row[3]);
    row[0] = join_low(a, c), row[1] = join_high(a, c);
    row[2] = join_low(b, d), row[3] = join_high(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    u32x16* row = square + i;
    const u32x16 a = even_lanes(row[0], row[4]), b = odd_lanes(row[0], row[4]);
    const u32x16 c = even_lanes(row[8], row[12]), d = odd_lanes(row[8], row[12]);
    row[0] = even_lanes(a, c), row[4] = even_lanes(b, d);
    row[8] = odd_lanes(a, c), row[12] = odd_lanes(b, d);
  }
}

static inline __attribute__((always_inline)) void load_square(const uint8_t* const* rows, int64_t column,
                                                              u32x16 (&square)[16]) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) square[i] = load_cells(reinterpret_cast<const Cell*>(rows[i]) + column);
}

// 16 keys of `num_cells` (a multiple of 16) into columns of `out`, whose rows are `stride` apart.
static inline void pack_keys(const uint8_t* const* keys, int64_t num_cells, Cell* out, int64_t stride) {
  for (int64_t column = 0; column < num_cells; column += 16) {
    u32x16 square[16];
    load_square(keys, column, square);
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) store_cells(out + (column + i) * stride, square[i]);
  }
}

// VECTORS * 16 columns of as many rows as there are values in a cell: one row, or two.
template <typename T, int VECTORS>
static inline __attribute__((always_inline)) void load_values(const uint8_t* const* rows, int64_t column,
                                                              u32x16 (&cells)[VECTORS]) {
  if constexpr (PER_CELL<T> == 1) {
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++)
      cells[v] = load_cells(reinterpret_cast<const Cell*>(rows[0]) + column + 16 * v);
  } else {
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v += 2) {
      u16x32 a, b;
      memcpy(&a, rows[0] + 2 * (column + 16 * v), 64);
      memcpy(&b, rows[1] + 2 * (column + 16 * v), 64);
      cells[v] = (u32x16)__builtin_shufflevector(
          a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43,
          16, 48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59);
      cells[v + 1] = (u32x16)__builtin_shufflevector(
          a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47,
          20, 52, 21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63);
    }
  }
}

// One row of `width` cells.
template <typename T>
static inline void pack_values(const uint8_t* const* values, int64_t width, Cell* out) {
  constexpr int VECTORS = int(PER_CELL<T>);
  for (int64_t column = 0; column < width; column += 16 * VECTORS) {
    u32x16 cells[VECTORS];
    load_values<T, VECTORS>(values, column, cells);
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) store_cells(out + column + 16 * v, cells[v]);
  }
}

// Columns of 32 values that `pack_values` has put out of order.
static inline void unshuffle(f32x16& low, f32x16& high) {
  const f32x16 first = __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const f32x16 second =
      __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  low = first;
  high = second;
}
