// Sixteen floats at a time, on any CPU: GCC's vectors become AVX-512, two AVX2 or four NEON registers.
//
// Intrinsics are used only where C++ has no equivalent. The compiler contracts and reorders nothing (see the flags in
// build.py): sums are in the order that is written, and a product is fused with an addition only by `fma`.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

using bf16 = uint16_t;  // the upper half of a float

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

static inline f32x16 splat(float x) { return f32x16{} + x; }

static inline f32x16 load(const float* p) {
  f32x16 v;
  memcpy(&v, p, 64);
  return v;
}

static inline void store(float* p, f32x16 v) { memcpy(p, &v, 64); }

static inline float to_float(bf16 x) {
  const uint32_t bits = uint32_t(x) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static inline float to_float(float x) { return x; }

static inline f32x16 load(const bf16* p) {
  u16x16 narrow;
  memcpy(&narrow, p, 32);
  const u32x16 wide = __builtin_convertvector(narrow, u32x16) << 16;
  f32x16 v;
  memcpy(&v, &wide, 64);
  return v;
}

// Rounds to nearest, ties to even; NaN stays NaN.
static inline bf16 to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (x != x) return bf16((bits >> 16) | 0x40);
  return bf16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static inline void narrow(float x, float* p) { *p = x; }
static inline void narrow(float x, bf16* p) { *p = to_bf16(x); }

static inline void store(bf16* p, f32x16 v) {
#if defined(__AVX512BF16__)
  const __m256bh narrow = _mm512_cvtneps_pbh((__m512)v);
  memcpy(p, &narrow, 32);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  float32x4_t x[4];
  memcpy(x, &v, 64);
  for (int i = 0; i < 4; i += 2)
    vst1q_bf16(reinterpret_cast<bfloat16_t*>(p + 4 * i), vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x[i]), x[i + 1]));
#elif defined(__aarch64__)
  uint32x4_t bits[4];
  memcpy(bits, &v, 64);
  for (int i = 0; i < 4; i += 2) {
    uint16x4_t halves[2];
    for (int j = 0; j < 2; j++) {
      const uint32x4_t x = bits[i + j], odd = vandq_u32(vshrq_n_u32(x, 16), vdupq_n_u32(1));
      const uint32x4_t nearest = vaddq_u32(vaddq_u32(x, vdupq_n_u32(0x7FFF)), odd);
      const uint32x4_t quiet = vorrq_u32(x, vdupq_n_u32(0x400000));
      const uint32x4_t is_number = vceqq_f32(vreinterpretq_f32_u32(x), vreinterpretq_f32_u32(x));
      halves[j] = vshrn_n_u32(vbslq_u32(is_number, nearest, quiet), 16);
    }
    vst1q_u16(p + 4 * i, vcombine_u16(halves[0], halves[1]));
  }
#else
  for (int i = 0; i < 16; i++) p[i] = to_bf16(v[i]);
#endif
}

// The first `count` of 16, padded with 0.
template <typename T>
static inline f32x16 load_part(const T* p, int64_t count) {
  T part[16] = {};
  memcpy(part, p, size_t(count) * sizeof(T));
  return load(part);
}

template <typename T>
static inline void store_part(T* p, f32x16 v, int64_t count) {
  T part[16];
  store(part, v);
  memcpy(p, part, size_t(count) * sizeof(T));
}

static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__aarch64__)
  float32x4_t x[4], y[4], z[4];
  memcpy(x, &a, 64);
  memcpy(y, &b, 64);
  memcpy(z, &c, 64);
  for (int i = 0; i < 4; i++) z[i] = vfmaq_f32(z[i], x[i], y[i]);
  f32x16 r;
  memcpy(&r, z, 64);
  return r;
#else
  f32x16 r;
  for (int i = 0; i < 16; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#endif
}

// x, or NaN where it is infinite. K and V are stored so: attention to such a row gives NaN, whatever its score, and the
// request fails instead of continuing without the row.
static inline float nan_if_infinite(float x) { return x + x * 0; }
static inline f32x16 nan_if_infinite(f32x16 x) { return x + x * splat(0); }

// The sum of all 16, by halves: always in the same order.
static inline float sum(f32x16 v) {
  float x[16];
  store(x, v);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

static inline float largest(f32x16 v) {
  float m = v[0];
  for (int i = 1; i < 16; i++) m = v[i] > m ? v[i] : m;
  return m;
}
