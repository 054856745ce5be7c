// The two products of attention, scores = Q K^T and out = P V, as one: rows times a matrix of cells.
//
// A cell is 32 bits: one float32, or two bfloat16 that lie next to each other along the sum. So both
// types take the same loops, and differ in what happens to a pair of cells.
#pragma once

#include "simd.h"

using Cell = uint32_t;

static inline u32x16 load_cells(const Cell* p) {
  u32x16 v;
  memcpy(&v, p, 64);
  return v;
}

static inline void store_cells(Cell* p, u32x16 v) { memcpy(p, &v, 64); }

template <typename T>
constexpr int64_t PER_CELL = int64_t(sizeof(Cell) / sizeof(T));

// sum + a * b of the values in the cells, in an order of their own, always the same.
template <typename T>
static inline f32x16 add_product(f32x16 sum, u32x16 a, u32x16 b);

template <>
inline f32x16 add_product<float>(f32x16 sum, u32x16 a, u32x16 b) {
  return fma((f32x16)a, (f32x16)b, sum);
}

template <>
inline f32x16 add_product<bf16>(f32x16 sum, u32x16 a, u32x16 b) {
#if defined(__AVX512BF16__)
  return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum = fma((f32x16)(a & 0xFFFF0000), (f32x16)(b & 0xFFFF0000), sum);
  return fma((f32x16)(a << 16), (f32x16)(b << 16), sum);
#endif
}

// Rows of cells, `stride` apart.
struct Cells {
  const Cell* cells;
  int64_t stride;
};

struct Floats {
  float* floats;
  int64_t stride;
};

// out[ROWS][16 VECTORS] = out * factor + a [ROWS][depth] b [depth][16 VECTORS]; without factors, a b.
// Rows of a are STRIDE apart, which the compiler must know: it has not enough registers for 8 addresses.
template <typename T, int64_t STRIDE, int ROWS, int VECTORS>
static inline __attribute__((always_inline)) void multiply_tile(const Cell* a, Cells b, int64_t depth,
                                                                const float* factors, Floats out) {
  f32x16 sums[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++)
      sums[r][v] = factors ? load(out.floats + r * out.stride + 16 * v) * splat(factors[r]) : f32x16{};
  for (int64_t k = 0; k < depth; k++) {
    u32x16 column[VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++) column[v] = load_cells(b.cells + k * b.stride + 16 * v);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      const u32x16 cell = u32x16{} + a[r * STRIDE + k];
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; v++) sums[r][v] = add_product<T>(sums[r][v], cell, column[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++) store(out.floats + r * out.stride + 16 * v, sums[r][v]);
}

template <typename T, int64_t STRIDE, int ROWS, int VECTORS>
static inline void multiply_rows(const Cell* a, Cells b, int64_t depth, int64_t width,
                                 const float* factors, Floats out) {
  int64_t column = 0;
  for (; column + 16 * VECTORS <= width; column += 16 * VECTORS)
    multiply_tile<T, STRIDE, ROWS, VECTORS>(a, {b.cells + column, b.stride}, depth, factors,
                                            {out.floats + column, out.stride});
  for (; column < width; column += 16)
    multiply_tile<T, STRIDE, ROWS, 1>(a, {b.cells + column, b.stride}, depth, factors,
                                      {out.floats + column, out.stride});
}

// The same for any number of rows, and `width` columns, a multiple of 16. What a row becomes does not
// depend on the rows beside it: each sum runs along `depth`, from its first cell to its last.
template <typename T, int64_t STRIDE>
static void multiply(int64_t rows, const Cell* a, Cells b, int64_t depth, int64_t width,
                     const float* factors, Floats out) {
  while (rows > 0) {
    const int64_t done = rows >= 8 ? 8 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
    switch (done) {
      case 8: multiply_rows<T, STRIDE, 8, 2>(a, b, depth, width, factors, out); break;
      case 4: multiply_rows<T, STRIDE, 4, 4>(a, b, depth, width, factors, out); break;
      case 2: multiply_rows<T, STRIDE, 2, 4>(a, b, depth, width, factors, out); break;
      default: multiply_rows<T, STRIDE, 1, 4>(a, b, depth, width, factors, out);
    }
    rows -= done;
    a += done * STRIDE;
    out.floats += done * out.stride;
    if (factors) factors += done;
  }
}
