// Some rows of x times 32 columns of W^T, in registers.
//
//   panel   32 columns of W^T, one step along K after the other; a step has the items of all columns
//             float [K][32]            bf16 [K / 2][32][2]
//   sums    float [rows][32]
//
// A step is four bytes of a row of x and 128 bytes of the panel. Each sum is accumulated in the order of steps only, so
// it does not depend on the other rows. If the process uses the matrix tiles of the CPU, bfloat16 is multiplied by
// those (amx_product.h), with sums in their order.
#pragma once

#include <algorithm>

#include "amx_product.h"
#include "lanes.h"
#include "operator.h"
#include "simd.h"

constexpr int64_t PANEL = 32;
constexpr int64_t STEP_BYTES = PANEL * 4;

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MAX_TILE_ROWS = 8;  // the sums of as many rows stay in registers
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int MAX_TILE_ROWS = 2;
#else
constexpr int MAX_TILE_ROWS = 1;
#endif
#if defined(__aarch64__)
constexpr bool HAS_NEON = true;
#else
constexpr bool HAS_NEON = false;
#endif
constexpr int MAX_PLAIN_ROWS = LANES == 16 ? 10 : MAX_TILE_ROWS;  // of float and bf16; the addresses of more spill
constexpr int VECTORS = PANEL / LANES;  // of a panel's columns
constexpr int64_t MOST_TILE_ROWS = std::max<int64_t>(MAX_PLAIN_ROWS, HAS_AMX ? AMX_ROWS : 0);
constexpr int64_t MOST_BLOCK_ROWS = std::max<int64_t>(MAX_PLAIN_ROWS, HAS_AMX ? AMX_BLOCK_ROWS : 0);

// a * b + c, rounded once if the CPU has FMA: the same for all sums on a machine.
static inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__)
  return fused(a, b, c);
#else
  return a * b + c;
#endif
}

// The arithmetic of a step, for one row and as many columns as a vector has lanes.
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

// Prefetches what is read soon into the cache of this level, `advance` bytes per step.
template <int LEVEL>
struct Prefetch {
  const char* next;
  int64_t advance;

  void step() {
    __builtin_prefetch(next, 0, 4 - LEVEL);
    __builtin_prefetch(next + 64, 0, 4 - LEVEL);
    next += advance;
  }
};

// The best number of rows of a tile: at most MOST_TILE_ROWS.
template <typename T>
static inline int64_t tile_rows() {
  return sizeof(T) == 2 && uses_tiles() ? AMX_ROWS : MAX_PLAIN_ROWS;
}

// The largest number of rows of a call: at most MOST_BLOCK_ROWS. With matrix tiles they are multiplied by one piece of
// a panel after the other.
template <typename T>
static inline int64_t block_rows() {
  return sizeof(T) == 2 && uses_tiles() ? AMX_BLOCK_ROWS : MAX_PLAIN_ROWS;
}

// The sums of 1 to `block_rows` rows. Compiled once, in linear_tile.cpp, for all products.
template <typename T, int LEVEL>
void multiply_rows(int64_t rows, const T* x, int64_t x_stride, const T* panel, int64_t num_steps,
                   Prefetch<LEVEL> ahead, float* sums);
