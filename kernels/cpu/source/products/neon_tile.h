// Some rows of x times some columns of a panel, for 64-bit ARM: see neon.h.
//
// A vector has four columns, and 16 of the 32 registers hold sums. So the more rows, the fewer columns at a time, and
// the panel is read several times, from the L1 cache after the first.
#pragma once

#include "linear_tile.h"
#include "neon.h"

#if defined(__aarch64__)
namespace neon {

constexpr int vectors_at_once(int rows) { return rows <= 2 ? 8 : rows <= 4 ? 4 : 2; }

template <int ROWS, int VECTORS_OF>
struct FloatSums {
  float32x4_t sums[ROWS][VECTORS_OF] = {};

  float32x4_t of(int row, int v) const { return sums[row][v]; }

  template <int LANE>
  inline __attribute__((always_inline)) void add(int v, float32x4_t w, const float32x4_t (&x)[ROWS]) {
    unrolled<ROWS>([&](auto row) { sums[row][v] = vfmaq_laneq_f32(sums[row][v], w, x[row], LANE); });
  }
};

// `prefetch` is called once per step; `panel` begins with the first wanted column.
template <int ROWS, int VECTORS_OF, typename PrefetchStep>
inline auto sums_of(const float* x, int64_t x_stride, const float* panel, int64_t num_steps, PrefetchStep prefetch) {
  FloatSums<ROWS, VECTORS_OF> all;
  float32x4_t items[ROWS];
  int64_t k = 0;
  for (; k + 4 <= num_steps; k += 4, panel += 4 * PANEL) {
    unrolled<ROWS>([&](auto row) { items[row] = vld1q_f32(x + row * x_stride + k); });
    unrolled<4>([&](auto i) {
      prefetch();
      unrolled<VECTORS_OF>(
          [&](auto v) { all.template add<i.value>(v, vld1q_f32(panel + i * PANEL + v * LANES), items); });
    });
  }
  for (; k < num_steps; k++, panel += PANEL) {
    unrolled<ROWS>([&](auto row) { items[row] = vdupq_n_f32(x[row * x_stride + k]); });
    unrolled<VECTORS_OF>([&](auto v) { all.template add<0>(v, vld1q_f32(panel + v * LANES), items); });
  }
  return all;
}

#if HAS_NEON_MATRICES
// One row, with BFDOT.
template <int VECTORS_OF, typename PrefetchStep>
inline auto sums_of_row(const bf16* x, const bf16* panel, int64_t num_steps, PrefetchStep prefetch) {
  FloatSums<1, VECTORS_OF> all;
  const auto load = [&](int64_t step, int v) { return load16(panel + step * 2 * PANEL + v * 2 * LANES); };
  int64_t step = 0;
  for (; step + 4 <= num_steps; step += 4) {
    const uint8x16_t items = load16(x + 2 * step);
    unrolled<4>([&](auto i) {
      prefetch();
      unrolled<VECTORS_OF>([&](auto v) {
        all.sums[0][v] = dot_bf16<i.value>(all.sums[0][v], load(step + i, v), items);
      });
    });
  }
  for (; step < num_steps; step++) {
    uint32_t pair;
    memcpy(&pair, x + 2 * step, sizeof pair);
    const uint8x16_t items = vreinterpretq_u8_u32(vdupq_n_u32(pair));
    unrolled<VECTORS_OF>([&](auto v) { all.sums[0][v] = dot_bf16(all.sums[0][v], load(step, v), items); });
  }
  return all;
}

template <int ROWS, int VECTORS_OF, typename PrefetchStep>
inline auto sums_of(const bf16* x, int64_t x_stride, const bf16* panel, int64_t num_steps, PrefetchStep prefetch) {
  if constexpr (ROWS == 1) {
    return sums_of_row<VECTORS_OF>(x, panel, num_steps, prefetch);
  } else {
    PairSums<float32x4_t, ROWS, VECTORS_OF> all;
    const auto load = [&](int64_t step, int v) { return load16(panel + step * 2 * PANEL + v * 2 * LANES); };
    int64_t step = 0;
    for (; step + 2 <= num_steps; step += 2) {
      prefetch();
      prefetch();
      all.add_rows([&](int row) { return vreinterpret_s8_u16(vld1_u16(x + row * x_stride + 2 * step)); },
              [&](int behind, int v) { return load(step + behind, v); });
    }
    if (step < num_steps)
      all.add_rows(
          [&](int row) {
            uint64_t pair = 0;
            memcpy(&pair, x + row * x_stride + 2 * step, sizeof(uint32_t));
            return vcreate_s8(pair);
          },
          [&](int behind, int v) { return behind ? no_weights() : load(step, v); });
    return all;
  }
}
#else
template <int ROWS, int VECTORS_OF, typename PrefetchStep>
inline auto sums_of(const bf16* x, int64_t x_stride, const bf16* panel, int64_t num_steps, PrefetchStep prefetch) {
  FloatSums<ROWS, VECTORS_OF> all;
  float32x4_t items[ROWS];
  const auto add_step = [&](auto lane, int64_t step) __attribute__((always_inline)) {
    unrolled<VECTORS_OF>([&](auto v) {
      const uint32x4_t w = vreinterpretq_u32_u8(load16(panel + step * 2 * PANEL + v * 2 * LANES));
      all.template add<lane.value>(v, vreinterpretq_f32_u32(vshlq_n_u32(w, 16)), items);
      const uint32x4_t upper = vandq_u32(w, vdupq_n_u32(0xFFFF0000u));
      all.template add<lane.value + 1>(v, vreinterpretq_f32_u32(upper), items);
    });
  };
  int64_t step = 0;
  for (; step + 2 <= num_steps; step += 2) {
    unrolled<ROWS>([&](auto row) {
      items[row] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x + row * x_stride + 2 * step), 16));
    });
    prefetch();
    add_step(std::integral_constant<int, 0>(), step);
    prefetch();
    add_step(std::integral_constant<int, 2>(), step + 1);
  }
  if (step < num_steps) {
    unrolled<ROWS>([&](auto row) {
      uint32_t pair;
      memcpy(&pair, x + row * x_stride + 2 * step, sizeof pair);
      items[row] = vreinterpretq_f32_u32(vshll_n_u16(vcreate_u16(pair), 16));
    });
    add_step(std::integral_constant<int, 0>(), step);
  }
  return all;
}
#endif

template <int ROWS, int VECTORS_OF>
struct IntSums {
  int32x4_t sums[ROWS][VECTORS_OF] = {};

  int32x4_t of(int row, int v) const { return sums[row][v]; }
};

// Adds the products of 32 bytes of each row from `q` on, in place; `load(step, v)` returns the operand of `dot`, four
// bytes of each of four columns.
template <int ROWS, int VECTORS_OF, typename Load>
inline __attribute__((always_inline)) void add_group(IntSums<ROWS, VECTORS_OF>& all, const int8_t* q,
                                                     int64_t q_stride, Load load) {
  unrolled<2>([&](auto half) {
    int8x16_t items[ROWS];
    unrolled<ROWS>([&](auto row) { items[row] = vld1q_s8(q + row * q_stride + 16 * half); });
    unrolled<4>([&](auto i) {
      unrolled<VECTORS_OF>([&](auto v) {
        const uint8x16_t w = load(4 * half + i, int(v));
        unrolled<ROWS>([&](auto row) { all.sums[row][v] = dot<i.value>(all.sums[row][v], w, items[row]); });
      });
    });
  });
}

#if HAS_NEON_MATRICES
template <int ROWS, int VECTORS_OF, typename Load>
inline __attribute__((always_inline)) void add_group(PairSums<int32x4_t, ROWS, VECTORS_OF>& all, const int8_t* q,
                                                     int64_t q_stride, Load load) {
  unrolled<4>([&](auto i) {
    all.add_rows([&](int row) { return vld1_s8(q + row * q_stride + 8 * i); },
            [&](int behind, int v) { return load(2 * i + behind, v); });
  });
}

template <int ROWS, int VECTORS_OF>
using ByteSums = std::conditional_t<ROWS == 1, IntSums<ROWS, VECTORS_OF>, PairSums<int32x4_t, ROWS, VECTORS_OF>>;
#else
template <int ROWS, int VECTORS_OF>
using ByteSums = IntSums<ROWS, VECTORS_OF>;
#endif

}  // namespace neon
#endif
