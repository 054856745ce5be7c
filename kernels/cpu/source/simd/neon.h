// The instructions of 64-bit ARM for products, by the target of the compiler:
//
//   always          FMLA by element: a vector times one item of another
//   dotprod         SDOT: groups of four signed bytes, exact
//   bf16 and i8mm   BFDOT, BFMMLA, USDOT, USMMLA: pairs of bfloat16, groups of four bytes, and both for 2 x 2 sums
//
// BFDOT adds a pair as (sum + (a0 b0 + a1 b1)), each rounded to odd and without denormals; BFMMLA does so twice, one
// pair after the other (Arm ARM, BFDotAdd and BFMatMulAdd, with FPCR.EBF = 0, the state in which every process begins).
// So both give the same bits; FMLA gives others.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_MATMUL_INT8)
#define HAS_NEON_MATRICES 1
#else
#define HAS_NEON_MATRICES 0
#endif

namespace neon {

// Calls call(integral_constant) for 0 to COUNT - 1.
template <int COUNT, typename Call>
inline __attribute__((always_inline)) void unrolled(Call call) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (call(std::integral_constant<int, I>()), ...);
  }(std::make_integer_sequence<int, COUNT>());
}

static inline uint8x16_t load16(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }

// From two steps (four bytes of four columns each): both steps of columns 0 and 1, or of 2 and 3.
static inline uint8x16_t first_columns(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}
static inline uint8x16_t last_columns(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

// Bytes of weights (unsigned, w + 128) in the form that `dot` multiplies, and whether they are still shifted by 128.
#if HAS_NEON_MATRICES
constexpr bool IS_SHIFTED = true;
static inline uint8x16_t weights_of(uint8x16_t u) { return u; }
#else
constexpr bool IS_SHIFTED = false;
static inline uint8x16_t weights_of(uint8x16_t u) { return veorq_u8(u, vdupq_n_u8(128)); }
#endif

// sums + w . q, four bytes per lane, with the four signed bytes of q at LANE. Weights are results of `weights_of`, or
// less than 128. Exact.
template <int LANE>
static inline int32x4_t dot(int32x4_t sums, uint8x16_t w, int8x16_t q) {
#if HAS_NEON_MATRICES
  return vusdotq_laneq_s32(sums, w, q, LANE);
#elif defined(__ARM_FEATURE_DOTPROD)
  return vdotq_laneq_s32(sums, vreinterpretq_s8_u8(w), q, LANE);
#else  // a sum of two products has room in 16 bits: q is at least -127
  const int8x16_t four = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(q), LANE));
  const int8x16_t signed_w = vreinterpretq_s8_u8(w);
  const int16x8_t low = vmull_s8(vget_low_s8(signed_w), vget_low_s8(four));
  return vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(signed_w, four)));
#endif
}

#if HAS_NEON_MATRICES
static inline float32x4_t dot_bf16(float32x4_t sums, uint8x16_t w, uint8x16_t x) {
  return vbfdotq_f32(sums, vreinterpretq_bf16_u8(w), vreinterpretq_bf16_u8(x));
}

template <int LANE>
static inline float32x4_t dot_bf16(float32x4_t sums, uint8x16_t w, uint8x16_t x) {
  return vbfdotq_laneq_f32(sums, vreinterpretq_bf16_u8(w), vreinterpretq_bf16_u8(x), LANE);
}

// A step of weights that changes no sum when multiplied by items of 0: it gives -0, and x + -0 = x for all x.
static inline uint8x16_t no_weights() { return vreinterpretq_u8_u16(vdupq_n_u16(0x8000)); }

// sums [2 columns][2 rows] + w [2 columns][8 bytes] times x [2 rows][8 bytes]
static inline float32x4_t multiply(float32x4_t sums, uint8x16_t w, int8x16_t x) {
  return vbfmmlaq_f32(sums, vreinterpretq_bf16_u8(w), vreinterpretq_bf16_s8(x));
}
static inline int32x4_t multiply(int32x4_t sums, uint8x16_t w, int8x16_t x) { return vusmmlaq_s32(sums, w, x); }

// Sums of pairs of rows in the layout of `multiply`: for each pair and four columns, columns 0 and 1, then 2 and 3.
template <typename Sum, int ROWS, int VECTORS>
struct PairSums {
  static constexpr int PAIRS = (ROWS + 1) / 2;
  Sum sums[PAIRS][VECTORS][2] = {};

  // Multiplies pairs of rows of eight bytes by two steps of the columns: step(0 or 1, vector).
  template <typename Step>
  inline __attribute__((always_inline)) void add(const int8x16_t (&x)[PAIRS], Step step) {
    unrolled<VECTORS>([&](auto v) {
      const uint8x16_t a = step(0, int(v)), b = step(1, int(v));
      const uint8x16_t first = first_columns(a, b), last = last_columns(a, b);
      unrolled<PAIRS>([&](auto pair) {
        sums[pair][v][0] = multiply(sums[pair][v][0], first, x[pair]);
        sums[pair][v][1] = multiply(sums[pair][v][1], last, x[pair]);
      });
    });
  }

  // The same where row(number) returns eight bytes; with an odd number of rows the last is used twice.
  template <typename Row, typename Step>
  inline __attribute__((always_inline)) void add_rows(Row row, Step step) {
    int8x16_t x[PAIRS];
    unrolled<PAIRS>([&](auto pair) {
      constexpr int FIRST = 2 * pair.value, SECOND = FIRST + 1 < ROWS ? FIRST + 1 : FIRST;
      x[pair] = vcombine_s8(row(FIRST), row(SECOND));
    });
    add(x, step);
  }

  // The sums of a row for four columns.
  inline __attribute__((always_inline)) Sum of(int row, int v) const {
    const uint32x4_t first = (uint32x4_t)sums[row / 2][v][0], last = (uint32x4_t)sums[row / 2][v][1];
    return row % 2 ? (Sum)vuzp2q_u32(first, last) : (Sum)vuzp1q_u32(first, last);
  }

  // Initializes the sums of a pair of rows.
  inline __attribute__((always_inline)) void begin(int pair, int v, Sum a, Sum b) {
    sums[pair][v][0] = (Sum)vzip1q_u32((uint32x4_t)a, (uint32x4_t)b);
    sums[pair][v][1] = (Sum)vzip2q_u32((uint32x4_t)a, (uint32x4_t)b);
  }
};
#endif

}  // namespace neon
#else
#define HAS_NEON_MATRICES 0
#endif
