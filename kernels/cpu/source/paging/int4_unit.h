// One full block of one KV head in 4 bits; see kernels/paging/int4_block.py.
//
//   items    K [S][H/2], V [S][H/2]     two a byte: item d in the low bits, item d + H/2 in the high ones
//   steps    scales of K [H], zeros of K [H], scales of V [S], zeros of V [S], in float16
//
//   x' = item * scale + zero            K has a scale and a zero for each dimension, V for each token
#pragma once

#include "arena.h"

namespace {

using f16 = uint16_t;  // as bits
constexpr float HALF_MAX = 65504;

constexpr f16 HALF_NAN = 0x7E00;

// Exponent and mantissa are shifted to their places in float32; the product corrects the bias. Steps are never
// infinite: the largest exponent means NaN.
f32x16 from_f16(u16x16 bits) {
  const u32x16 wide = __builtin_convertvector(bits, u32x16), size = wide & 0x7FFF;
  const f32x16 number = (f32x16)(size << 13) * 0x1p112f;
  const u32x16 is_nan = (u32x16)(size >= 0x7C00) & 0x7FC00000;
  return (f32x16)((u32x16)number | is_nan | (wide & 0x8000) << 16);
}

float from_f16(f16 bits) {
  u16x16 one{};
  one[0] = bits;
  return from_f16(one)[0];
}

f32x16 load_halves(const f16* p, int64_t count) {
  u16x16 bits{};
  memcpy(&bits, p, size_t(std::min<int64_t>(16, count)) * sizeof(f16));
  return from_f16(bits);
}

// The largest float16 that is not above `size`, which is from 0 to HALF_MAX.
f16 floor_of(float size) {
  const f32x16 shifted = splat(size * 0x1p-112f);
  f16 bits = f16(((u32x16)shifted)[0] >> 13);
  while (from_f16(bits) > size) bits--;
  return bits;
}

// The smallest float16 that is not below `size`.
f16 ceiling_of(float size) {
  const f16 bits = floor_of(size);
  return from_f16(bits) < size ? f16(bits + 1) : bits;
}

// Scale and zero of items, rounded so that items 0 to 15 cover the range from the least to the largest value.
struct Step {
  f16 scale, zero;

  static Step over(float least, float most, bool has_nan) {
    if (has_nan) return {HALF_NAN, HALF_NAN};  // and items are 0
    least = std::max(least, -HALF_MAX) + 0.0f;  // there is one zero
    most = std::min(most, HALF_MAX);
    Step step;
    step.zero = least < 0 ? f16(ceiling_of(-least) | 0x8000) : floor_of(std::min(least, HALF_MAX));
    step.scale = ceiling_of(std::max(0.0f, most - from_f16(step.zero)) / 15.0f);
    return step;
  }
};

// Rounds to nearest, ties to even.
u32x16 items_of(f32x16 x, f32x16 scale, f32x16 zero) {
  const f32x16 divisor = scale > splat(0) ? scale : splat(1);
  f32x16 y = (x - zero) / divisor;
  y = y > splat(0) ? y : splat(0);
  y = y < splat(15) ? y : splat(15);
  return (u32x16)(y + splat(0x1p23f)) & 15;
}

struct Int4Unit {
  uint8_t* bytes;
  int64_t block_size, width;

  int64_t half_width() const { return width / 2; }
  uint8_t* row(int64_t is_value, int64_t slot) const {
    return bytes + (is_value * block_size + slot) * half_width();
  }
  f16* key_steps() const { return reinterpret_cast<f16*>(bytes + 2 * block_size * half_width()); }
  f16* value_steps() const { return key_steps() + 2 * width; }
};

// Quantizes rows of K and V, `stride` apart, to a unit.
template <typename T>
class Quantizing {
 public:
  Quantizing(const Int4Unit& unit, const T* keys, const T* values, int64_t stride)
      : unit_(unit), keys_(keys), values_(values), stride_(stride) {}

  void run() const {
    for (int64_t d = 0; d < unit_.width; d += 16) find_key_steps(d);
    for (int64_t slot = 0; slot < unit_.block_size; slot++) {
      const f16 *scales = unit_.key_steps(), *zeros = scales + unit_.width;
      pack(keys_ + slot * stride_, unit_.row(0, slot), [&](int64_t d, f32x16 x) {
        const int64_t count = unit_.width - d;
        return items_of(x, load_halves(scales + d, count), load_halves(zeros + d, count));
      });
      const Step step = value_step(values_ + slot * stride_);
      unit_.value_steps()[slot] = step.scale;
      unit_.value_steps()[unit_.block_size + slot] = step.zero;
      const f32x16 scale = splat(from_f16(step.scale)), zero = splat(from_f16(step.zero));
      pack(values_ + slot * stride_, unit_.row(1, slot),
           [&](int64_t, f32x16 x) { return items_of(x, scale, zero); });
    }
  }

 private:
  // For up to 16 dimensions from d on.
  void find_key_steps(int64_t d) const {
    const int64_t count = std::min<int64_t>(16, unit_.width - d);
    f32x16 least = load_up_to(keys_ + d, count), most = least;
    i32x16 has_nan = least != least;
    for (int64_t slot = 1; slot < unit_.block_size; slot++) {
      const f32x16 x = load_up_to(keys_ + slot * stride_ + d, count);
      least = x < least ? x : least;
      most = x > most ? x : most;
      has_nan |= x != x;
    }
    for (int64_t i = 0; i < count; i++) {
      const Step step = Step::over(least[i], most[i], has_nan[i]);
      unit_.key_steps()[d + i] = step.scale;
      unit_.key_steps()[unit_.width + d + i] = step.zero;
    }
  }

  Step value_step(const T* row) const {
    float least = to_float(row[0]), most = least;
    bool has_nan = least != least;
    for (int64_t d = 1; d < unit_.width; d++) {
      const float x = to_float(row[d]);
      least = std::min(least, x);
      most = std::max(most, x);
      has_nan |= x != x;
    }
    return Step::over(least, most, has_nan);
  }

  template <typename ItemsOf>
  void pack(const T* x, uint8_t* items, ItemsOf items_at) const {
    const int64_t half_width = unit_.half_width();
    for (int64_t d = 0; d < half_width; d += 16) {
      const int64_t count = half_width - d;
      const u32x16 low = items_at(d, load_up_to(x + d, count));
      const u32x16 high = items_at(half_width + d, load_up_to(x + half_width + d, count));
      const u8x16 pairs = narrow(low | high << 4);
      memcpy(items + d, &pairs, size_t(std::min<int64_t>(16, count)));
    }
  }

  const Int4Unit& unit_;
  const T *keys_, *values_;
  int64_t stride_;
};

// The low items of bytes, and the high ones.
f32x16 low_of(u32x16 pairs) { return __builtin_convertvector((i32x16)(pairs & 15), f32x16); }
f32x16 high_of(u32x16 pairs) { return __builtin_convertvector((i32x16)(pairs >> 4), f32x16); }

// Dequantizes slots `begin` to `end - 1` of a unit to rows of T, padded with zeros to `padded`.
template <typename T>
class Dequantizing {
 public:
  Dequantizing(const Int4Unit& unit, int64_t begin, int64_t end, int64_t padded)
      : unit_(unit), begin_(begin), end_(end), padded_(padded) {}

  void keys(T* rows) const {
    fill_up(rows);
    unit_.half_width() % 16 ? keys_of<false>(rows) : keys_of<true>(rows);
  }

  void values(T* rows) const {
    fill_up(rows);
#if defined(__AVX512BW__)
    if (sizeof(T) == 2 && unit_.half_width() % 32 == 0) return look_values_up(rows);
#endif
    unit_.half_width() % 16 ? values_of<false>(rows) : values_of<true>(rows);
  }

 private:
  // IS_WHOLE: vectors of 16 items each, so that no count is checked.
  template <bool IS_WHOLE>
  void keys_of(T* rows) const {
    const int64_t half_width = unit_.half_width();
    const f16 *scales = unit_.key_steps(), *zeros = scales + unit_.width;
    for (int64_t d = 0; d < half_width; d += 16) {
      const int64_t count = IS_WHOLE ? 16 : half_width - d, high = half_width + d;
      const f32x16 low_scale = load_halves(scales + d, count), high_scale = load_halves(scales + high, count);
      const f32x16 low_zero = load_halves(zeros + d, count), high_zero = load_halves(zeros + high, count);
      for (int64_t slot = begin_; slot < end_; slot++) {
        const u32x16 pairs = widen(load_items(unit_.row(0, slot) + d, count));
        T* row = rows + (slot - begin_) * padded_;
        store_up_to(row + d, fma(low_of(pairs), low_scale, low_zero), count);
        store_up_to(row + high, fma(high_of(pairs), high_scale, high_zero), count);
      }
    }
  }

  template <bool IS_WHOLE>
  void values_of(T* rows) const {
    const int64_t half_width = unit_.half_width();
    for (int64_t slot = begin_; slot < end_; slot++) {
      const f32x16 scale = splat(from_f16(unit_.value_steps()[slot]));
      const f32x16 zero = splat(from_f16(unit_.value_steps()[unit_.block_size + slot]));
      T* row = rows + (slot - begin_) * padded_;
      for (int64_t d = 0; d < half_width; d += 16) {
        const int64_t count = IS_WHOLE ? 16 : half_width - d;
        const u32x16 pairs = widen(load_items(unit_.row(1, slot) + d, count));
        store_up_to(row + d, fma(low_of(pairs), scale, zero), count);
        store_up_to(row + half_width + d, fma(high_of(pairs), scale, zero), count);
      }
    }
  }

#if defined(__AVX512BW__)
  // The items of a row have 16 possible values: these are computed in bfloat16, and looked up by item.
  void look_values_up(T* rows) const {
    const int64_t half_width = unit_.half_width();
    const f32x16 items{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t slot = begin_; slot < end_; slot++) {
      const f32x16 scale = splat(from_f16(unit_.value_steps()[slot]));
      const f32x16 zero = splat(from_f16(unit_.value_steps()[unit_.block_size + slot]));
      alignas(32) T numbers[16];
      store(numbers, fma(items, scale, zero));
      const __m512i table = _mm512_castsi256_si512(_mm256_load_si256(reinterpret_cast<const __m256i*>(numbers)));
      T* row = rows + (slot - begin_) * padded_;
      for (int64_t d = 0; d < half_width; d += 32) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit_.row(1, slot) + d));
        const __m512i pairs = _mm512_cvtepu8_epi16(bytes), low = _mm512_and_si512(pairs, _mm512_set1_epi16(15));
        _mm512_storeu_si512(row + d, _mm512_permutexvar_epi16(low, table));
        _mm512_storeu_si512(row + half_width + d, _mm512_permutexvar_epi16(_mm512_srli_epi16(pairs, 4), table));
      }
    }
  }
#endif

  void fill_up(T* rows) const {
    for (int64_t row = 0; unit_.width < padded_ && row < end_ - begin_; row++)
      std::fill(rows + row * padded_ + unit_.width, rows + (row + 1) * padded_, T{});
  }

  const Int4Unit& unit_;
  int64_t begin_, end_, padded_;
};

}  // namespace
