// exp, tanh, erf, and activations made of them, sixteen floats at a time.
//
// Within 2 ulp of float32 of the true value (measured in tests/kernels/cpu/test_small_operators.py), for all arguments;
// NaN gives NaN. The same steps on every CPU.
#pragma once

#include "simd.h"

static inline i32x16 bits_of(f32x16 x) { return (i32x16)x; }
static inline f32x16 as_floats(i32x16 bits) { return (f32x16)bits; }
static inline f32x16 absolute(f32x16 x) { return as_floats(bits_of(x) & 0x7FFFFFFF); }

// Copies the sign of `signs`; x is not negative.
static inline f32x16 with_sign(f32x16 x, f32x16 signs) {
  return as_floats(bits_of(x) | (bits_of(signs) & int32_t(0x80000000)));
}

// The nearest integer, ties to even; |x| < 2^22.
static inline f32x16 nearest(f32x16 x) {
  const f32x16 shift = splat(12582912.0f);  // 1.5 * 2^23: no bits are left for a fraction
  return (x + shift) - shift;
}

// x * 2^n, rounded once, or twice if the result is subnormal; |n| <= 252.
static inline f32x16 times_power_of_2(f32x16 x, f32x16 n) {
  const i32x16 whole = __builtin_convertvector(n, i32x16);
  const i32x16 half = whole >> 1;
  return x * as_floats((half + 127) << 23) * as_floats((whole - half + 127) << 23);
}

// 2^n e^r = e^x, where n is the integer nearest to x / ln 2, so that |r| <= ln 2 / 2.
static inline f32x16 exp(f32x16 x) {
  const f32x16 least = splat(-104.0f), most = splat(89.0f);  // beyond: 0 and infinity
  x = x < least ? least : x;
  x = x > most ? most : x;
  const f32x16 n = nearest(x * 1.44269504f);
  f32x16 r = fma(n, splat(-0.693145752f), x);
  r = fma(n, splat(-1.42860677e-6f), r);
  f32x16 p = splat(1.37805939e-3f);
  p = fma(p, r, splat(8.37312452e-3f));
  p = fma(p, r, splat(4.16695364e-2f));
  p = fma(p, r, splat(1.66664720e-1f));
  p = fma(p, r, splat(4.99999851e-1f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return times_power_of_2(p, n);
}

// An odd polynomial near 0, and 1 - 2 / (e^2|x| + 1) beyond (Moshier, Cephes).
static inline f32x16 tanh(f32x16 x) {
  const f32x16 a = absolute(x), s = x * x;
  f32x16 p = splat(-5.70498872745e-3f);
  p = fma(p, s, splat(2.06390887954e-2f));
  p = fma(p, s, splat(-5.37397155531e-2f));
  p = fma(p, s, splat(1.33314422036e-1f));
  p = fma(p, s, splat(-3.33332819422e-1f));
  const f32x16 near = fma(p * s, x, x);
  const f32x16 far = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return a < 0.625f ? near : with_sign(far, x);
}

// An odd polynomial near 0, and 1 - e^q(|x|) beyond (N. Juffa).
static inline f32x16 erf(f32x16 x) {
  const f32x16 a = absolute(x), s = x * x;
  f32x16 p = splat(-5.96761703e-4f);
  p = fma(p, s, splat(4.99119423e-3f));
  p = fma(p, s, splat(-2.67681349e-2f));
  p = fma(p, s, splat(1.12819925e-1f));
  p = fma(p, s, splat(-3.76125336e-1f));
  p = fma(p, s, splat(1.28379166e-1f));
  const f32x16 near = fma(p, x, x);
  const f32x16 t = a > 4.0f ? splat(4.0f) : a;  // erf(4) is 1; NaN stays
  const f32x16 u = t * t;
  f32x16 q = fma(splat(-1.72853470e-5f), t, splat(3.83197126e-4f));
  q = fma(q, u, fma(splat(-3.88396438e-3f), t, splat(2.42546219e-2f)));
  q = fma(q, t, splat(-1.06777877e-1f));
  q = fma(q, t, splat(-6.34846687e-1f));
  q = fma(q, t, splat(-1.28717512e-1f));
  q = fma(q, t, -t);
  return a < 0.927734375f ? near : with_sign(1.0f - exp(q), x);
}

static inline f32x16 silu(f32x16 x) { return x / (1.0f + exp(-x)); }

static inline f32x16 gelu(f32x16 x) { return 0.5f * x * (1.0f + erf(x * 0.707106781f)); }

static inline f32x16 gelu_tanh(f32x16 x) {
  const f32x16 inner = 0.797884561f * x * fma(x * x, splat(0.044715f), splat(1.0f));
  return 0.5f * x * (1.0f + tanh(inner));
}

static inline f32x16 relu(f32x16 x) { return x < 0.0f ? splat(0.0f) : x; }
