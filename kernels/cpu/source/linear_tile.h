// Some rows of x times 32 columns of W^T, in registers.
//
//   panel   32 columns of W^T: of one step along K after the other, the items of all columns
//             float [K][32]            bf16 [K / 2][32][2]
//   sums    float [rows][32]
//
// A step is four bytes of a row of x and 128 of the panel. Every sum is made in the order of the steps and
// of nothing else, so it has the same bits whatever rows are computed beside it.
#pragma once

#include "operator.h"
#include "simd.h"

constexpr int64_t PANEL = 32;
constexpr int64_t STEP_BYTES = PANEL * 4;

// As wide as the registers are: GCC keeps wider vectors in memory.
#if defined(__AVX512F__)
constexpr int LANES = 16, MAX_TILE_ROWS = 8;  // the sums of as many rows stay in registers
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int LANES = 8, MAX_TILE_ROWS = 2;
#else
constexpr int LANES = 4, MAX_TILE_ROWS = 1;
#endif
constexpr int VECTORS = PANEL / LANES;  // of a panel's columns
typedef float Lanes __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));

// a * b + c, rounded once where the CPU can: the same for all sums of a machine.
static inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// What is done in a step for one row and as many columns as a vector has lanes.
template <typename T>
struct Step;

template <>
struct Step<float> {
  static constexpr int64_t DEPTH = 1;  // items of a row

  static Lanes add(Lanes sum, const float* x, Words w) {
    return multiply_add(*x - Lanes{}, (Lanes)w, sum);
  }
};

template <>
struct Step<bf16> {
  static constexpr int64_t DEPTH = 2;

  static Lanes add(Lanes sum, const bf16* x, Words w) {
#if defined(__AVX512BF16__)
    int32_t pair;
    memcpy(&pair, x, 4);
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w);
#else
    sum = multiply_add(to_float(x[0]) - Lanes{}, (Lanes)(w << 16), sum);
    return multiply_add(to_float(x[1]) - Lanes{}, (Lanes)(w & 0xFFFF0000u), sum);
#endif
  }
};

// What will be read soon: asked for meanwhile, `advance` bytes a step, into the cache of this level.
template <int LEVEL>
struct Ahead {
  const char* next;
  int64_t advance;

  void step() {
    __builtin_prefetch(next, 0, 4 - LEVEL);
    __builtin_prefetch(next + 64, 0, 4 - LEVEL);
    next += advance;
  }
};

template <int ROWS, typename T, int LEVEL>
void multiply_tile(const T* x, int64_t x_stride, const T* panel, int64_t num_steps,
                   Ahead<LEVEL> ahead, float* sums) {
  constexpr int64_t DEPTH = Step<T>::DEPTH;
  Lanes sum[ROWS][VECTORS] = {};
  for (int64_t step = 0; step < num_steps; step++) {
    Words w[VECTORS];
#pragma GCC unroll 8  // as one copy, they would go through memory
    for (int v = 0; v < VECTORS; v++) memcpy(&w[v], panel + v * LANES * DEPTH, sizeof(Words));
    for (int row = 0; row < ROWS; row++)
      for (int v = 0; v < VECTORS; v++)
        sum[row][v] = Step<T>::add(sum[row][v], x + row * x_stride, w[v]);
    ahead.step();
    panel += PANEL * DEPTH;
    x += DEPTH;
  }
  for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++)
      memcpy(sums + row * PANEL + v * LANES, &sum[row][v], sizeof(Lanes));
  }
}

// The same of 1 to MAX_TILE_ROWS rows.
template <int ROWS = MAX_TILE_ROWS, typename T, int LEVEL>
void multiply_rows(int64_t rows, const T* x, int64_t x_stride, const T* panel, int64_t num_steps,
                   Ahead<LEVEL> ahead, float* sums) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS)
      return multiply_rows<ROWS - 1>(rows, x, x_stride, panel, num_steps, ahead, sums);
  }
  multiply_tile<ROWS>(x, x_stride, panel, num_steps, ahead, sums);
}
