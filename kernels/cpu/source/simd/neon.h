// What 64-bit ARM has for products, by what the compiler was told of the CPU:
//
//   always          FMLA by element: a vector times one item of another
//   dotprod         SDOT: fours of signed bytes, exact
//   bf16 and i8mm   BFDOT, BFMMLA, USDOT, USMMLA: pairs of bfloat16, fours of bytes, and both for 2 x 2 sums
//
// BFDOT adds a pair as (sum + (a0 b0 + a1 b1)), each rounded to odd and without denormals; BFMMLA does so twice,
// one pair after the other (Arm ARM, BFDotAdd and BFMatMulAdd, of FPCR.EBF 0, as every process begins). So a sum
// has the same bits by either. With FMLA it has others.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_MATMUL_INT8)
#define HAS_NEON_MATRICES 1
#else
#define HAS_NEON_MATRICES 0
#endif

namespace neon {

// Two rows of eight bytes.
static inline int8x16_t pair_of(const void* a, const void* b) {
  return vcombine_s8(vld1_s8(static_cast<const int8_t*>(a)), vld1_s8(static_cast<const int8_t*>(b)));
}

static inline uint8x16_t load16(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }

// Of two steps (four bytes of four columns each) both steps of columns 0 and 1, or of 2 and 3.
static inline uint8x16_t first_columns(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}
static inline uint8x16_t last_columns(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

// Bytes of weights (unsigned, w + 128) as `dot` multiplies them, and whether they are still 128 too large.
#if HAS_NEON_MATRICES
constexpr bool IS_SHIFTED = true;
static inline uint8x16_t weights_of(uint8x16_t u) { return u; }
#else
constexpr bool IS_SHIFTED = false;
static inline uint8x16_t weights_of(uint8x16_t u) { return veorq_u8(u, vdupq_n_u8(128)); }
#endif

// sums + w . q, four bytes to a lane, of the four signed bytes of q at LANE. Weights are those of `weights_of`, or
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

// sums [2 columns][2 rows] + w [2 columns][8 bytes] times x [2 rows][8 bytes]
static inline float32x4_t multiply(float32x4_t sums, uint8x16_t w, int8x16_t x) {
  return vbfmmlaq_f32(sums, vreinterpretq_bf16_u8(w), vreinterpretq_bf16_s8(x));
}
static inline int32x4_t multiply(int32x4_t sums, uint8x16_t w, int8x16_t x) { return vusmmlaq_s32(sums, w, x); }
#endif

}  // namespace neon
#else
#define HAS_NEON_MATRICES 0
#endif
