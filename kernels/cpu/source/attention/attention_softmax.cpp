// Softmax of a row and a chunk of keys, for all kinds of attention.
#include <algorithm>

#include "attention_products.h"
#include "attention_softmax.h"
#include "functions.h"

namespace {

// The maximum; b if one of them is NaN.
f32x16 larger(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
__m256 low_half(f32x16 v) { return (__m256)__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }
__m256 high_half(f32x16 v) { return (__m256)__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15); }
#endif

// Like `fma`; from a loop GCC would make sixteen scalar instructions here. On other CPUs halves are slower than the
// loop.
f32x16 fused(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
  const __m256 low = _mm256_fmadd_ps(low_half(a), low_half(b), low_half(c));
  const __m256 high = _mm256_fmadd_ps(high_half(a), high_half(b), high_half(c));
  return (f32x16)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  return fma(a, b, c);
#endif
}

// The polynomial of Cephes' exp2f.
f32x16 power_of_2(f32x16 x) {
  x = larger(splat(-127.0f), x);
  const f32x16 integers_only = splat(0x1.8p23f + 127.0f);
  const f32x16 shifted = x + integers_only;  // in its lowest bits: 127 + the nearest integer
  const f32x16 rest = x - (shifted - integers_only);
  f32x16 power = splat(1.535336188319500e-4f);
  power = fused(power, rest, splat(1.339887440266574e-3f));
  power = fused(power, rest, splat(9.618437357674640e-3f));
  power = fused(power, rest, splat(5.550332471162809e-2f));
  power = fused(power, rest, splat(2.402264791363012e-1f));
  power = fused(power, rest, splat(6.931472028550421e-1f));
  power = fused(power, rest, splat(1.0f));
  return power * (f32x16)((u32x16)shifted << 23);
}

float largest_of(f32x16 v) {
  v = larger(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = larger(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = larger(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  v = larger(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return v[0];
}

// The largest item of each of 16 rows.
f32x16 largest_of_each(f32x16* rows) {
  const auto merge = [&](int count, auto larger_of) {
    for (int i = 0; i < count; i++) rows[i] = larger_of(rows[i], rows[i + count]);
  };
  merge(8, [](f32x16 a, f32x16 b) {
    return larger(__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                  __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
  });
  merge(4, [](f32x16 a, f32x16 b) {
    return larger(__builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                  __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31));
  });
  merge(2, [](f32x16 a, f32x16 b) {
    return larger(__builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                  __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
  });
  merge(1, [](f32x16 a, f32x16 b) {
    return larger(__builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                  __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31));
  });
  return rows[0];
}

// Factors of the products with 16 keys from `key` on.
template <bool HAS_SCALES>
f32x16 factors_of(const Weighing& what, int64_t key) {
  return HAS_SCALES ? load(what.key_factors + key) : splat(what.scoring.factor);
}

f32x16 hide(f32x16 scores, int64_t first, Visible visible) {
  if (visible.begin <= first && first + 16 <= visible.end) return scores;
  const i32x16 key = i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + int32_t(first);
  const i32x16 is_last = (key >= int32_t(visible.begin)) & (key < int32_t(visible.end));
  const i32x16 is_first = (key >= int32_t(visible.first_begin)) & (key < int32_t(visible.first_end));
  const i32x16 is_seen = is_last | is_first;
  return is_seen ? scores : splat(HIDDEN);
}

// Converts the products of a row to scores, or leaves the multiplication by `factor` to a later step; returns the
// largest by lane, before that multiplication.
template <bool HAS_SCALES>
inline f32x16 score_row(float* row, const Weighing& what, const Visible* visible, float& factor) {
  const bool sees_all = !visible || (visible->begin == 0 && visible->end == CHUNK);
  factor = 1;
  if (!HAS_SCALES && sees_all && what.scoring.cap == 0 && what.scoring.factor > 0) {  // nearly always
    factor = what.scoring.factor;
    f32x16 top = splat(HIDDEN);
#pragma GCC unroll 4
    for (int64_t key = 0; key < CHUNK; key += 16) top = larger(load(row + key), top);
    return top;
  }
  f32x16 top = splat(HIDDEN);
#pragma GCC unroll 4
  for (int64_t key = 0; key < CHUNK; key += 16) {
    f32x16 scores = load(row + key) * factors_of<HAS_SCALES>(what, key);
    if (what.scoring.cap != 0) scores = tanh(scores) * splat(what.scoring.cap);
    if (!sees_all) scores = hide(scores, key, *visible);
    store(row + key, scores);
    top = larger(scores, top);
  }
  return top;
}

// Converts the scores of a row to weights in T; their sums by lane are added to `total`.
template <bool HAS_SCALES, typename T>
inline void weigh_row(const float* scores, float factor, const Weighing& what, float top, float shrink, T* weights,
                      float* total) {
  f32x16 sums = load(total) * splat(shrink);
#pragma GCC unroll 4
  for (int64_t key = 0; key < CHUNK; key += 16) {
    const f32x16 score = HAS_SCALES ? load(scores + key) : load(scores + key) * splat(factor);
    const f32x16 x = power_of_2(score - splat(top));
    sums = sums + x;
    store(weights + key, HAS_SCALES ? x * load(what.value_scales + key) : x);
  }
  store(total, sums);
}

template <bool HAS_SCALES, typename T>
void weigh_all(const Weighing& what, const Visible* visible, float* scores, Totals of, T* weights, float* rescales) {
  for (int64_t first = 0; first < what.rows; first += 16) {
    const int64_t rows = std::min<int64_t>(16, what.rows - first);
    float before[16] = {}, tops[16] = {}, factors[16] = {}, shrink[16];
    f32x16 lanes[16];
    for (int64_t i = 0; i < rows; i++) {
      const int64_t row = first + i;
      before[i] = of.top(row);
      lanes[i] = score_row<HAS_SCALES>(scores + row * CHUNK, what, visible ? visible + row : nullptr, factors[i]);
    }
    if (rows == 16)
      store(tops, largest_of_each(lanes));
    else
      for (int64_t i = 0; i < rows; i++) tops[i] = largest_of(lanes[i]);
    store(tops, larger(load(before), load(tops) * load(factors)));
    store(shrink, power_of_2(load(before) - load(tops)));
    for (int64_t i = 0; i < rows; i++) {
      const int64_t row = first + i;
      weigh_row<HAS_SCALES>(scores + row * CHUNK, factors[i], what, tops[i], shrink[i], weights + row * CHUNK,
                            of.total(row));
      of.top(row) = tops[i];
      rescales[row] = shrink[i];
    }
  }
}

}  // namespace

f32x16 powers_of_2(f32x16 x) { return power_of_2(x); }

template <typename T>
void weigh(const Weighing& what, const Visible* visible, float* scores, Totals of, T* weights, float* rescales) {
  if (what.value_scales)
    weigh_all<true>(what, visible, scores, of, weights, rescales);
  else
    weigh_all<false>(what, visible, scores, of, weights, rescales);
}

template void weigh(const Weighing&, const Visible*, float*, Totals, float*, float*);
template void weigh(const Weighing&, const Visible*, float*, Totals, bf16*, float*);
