// Some rows of x times 32 columns of W^T, in registers.
//
//   panel   32 columns of W^T: of one step along K after the other, the items of all columns
//             float [K][32]            bf16 [K / 2][32][2]
//   sums    float [rows][32]
//
// A step is four bytes of a row of x and 128 of the panel. Every sum is made in the order of the steps and
// of nothing else, so it has the same bits whatever rows are computed beside it. Where the process uses the
// matrix tiles of the CPU, bfloat16 goes through those (amx_product.h), with sums in their order.
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

// a * b + c, rounded once where the CPU can: the same for all sums of a machine.
static inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__)
  return fused(a, b, c);
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
struct Prefetch {
  const char* next;
  int64_t advance;

  void step() {
    __builtin_prefetch(next, 0, 4 - LEVEL);
    __builtin_prefetch(next + 64, 0, 4 - LEVEL);
    next += advance;
  }
};

// As many rows as are best multiplied at once: at most MOST_TILE_ROWS.
template <typename T>
static inline int64_t tile_rows() {
  return sizeof(T) == 2 && uses_tiles() ? AMX_ROWS : MAX_PLAIN_ROWS;
}

// And as many as a call may have: at most MOST_BLOCK_ROWS. Those of tiles are multiplied piece by piece of a panel.
template <typename T>
static inline int64_t block_rows() {
  return sizeof(T) == 2 && uses_tiles() ? AMX_BLOCK_ROWS : MAX_PLAIN_ROWS;
}

// The sums of 1 to `block_rows` rows. Compiled once, in linear_tile.cpp, for all that multiply.
template <typename T, int LEVEL>
void multiply_rows(int64_t rows, const T* x, int64_t x_stride, const T* panel, int64_t num_steps,
                   Prefetch<LEVEL> ahead, float* sums);
