// Vectors with the width of the registers: GCC keeps wider ones in memory.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Lanes __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 4)));

// a * b + c, rounded once.
static inline Lanes fused(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Lanes)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  Lanes r;
  for (int i = 0; i < LANES; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#endif
}

// Forces a single load for all uses: GCC would repeat it in each multiplication, and a load of 64 bytes takes as long
// as the multiplication.
static inline void keep_in_register(Words& words) {
#if defined(__AVX512F__)
  asm("" : "+v"(words));
#elif defined(__x86_64__)
  asm("" : "+x"(words));
#else
  (void)words;
#endif
}

// Items index(0), index(1) ... of a and b concatenated.
template <typename Vector, typename Index, int... I>
static inline Vector pick(Vector a, Vector b, Index index, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, index(I)...);
}

template <typename Index>
static inline Words pick(Words a, Words b, Index index) {
  return pick(a, b, index, std::make_integer_sequence<int, LANES>());
}

template <typename Index>
static inline Halves pick(Halves a, Halves b, Index index) {
  return pick(a, b, index, std::make_integer_sequence<int, 2 * LANES>());
}
