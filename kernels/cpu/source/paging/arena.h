// The KV of one layer: the addresses of rows, and conversions to and from the dtype of the model.
//
//   unit (block, head)    items [2][S][H], then for 8-bit items scales [2][S] float32; see core/kv_layout.py
//
// A row is K or V of one token and head.
#pragma once

#include "operator.h"
#include "simd.h"

// The first 16 of `count` values, padded with zeros.
template <typename T>
static inline f32x16 load_up_to(const T* p, int64_t count) {
  return count >= 16 ? load(p) : load_part(p, count);
}

template <typename T>
static inline void store_up_to(T* p, f32x16 v, int64_t count) {
  if (count >= 16)
    store(p, v);
  else
    store_part(p, v, count);
}

enum class Items : int64_t { WIDE = 0, INT8 = 1, FP8 = 2 };  // WIDE: as the model computes

struct Arena {
  uint8_t* units;
  int64_t num_heads, block_size, width;
  Items items;
  int64_t unit_bytes, item_bytes;

  uint8_t* unit(int64_t block, int64_t head) const {
    return units + (block * num_heads + head) * unit_bytes;
  }
  uint8_t* row(uint8_t* unit, int64_t is_value, int64_t slot) const {
    return unit + (is_value * block_size + slot) * width * item_bytes;
  }
  float* scale(uint8_t* unit, int64_t is_value, int64_t slot) const {
    uint8_t* scales = unit + 2 * block_size * width * item_bytes;
    return reinterpret_cast<float*>(scales) + is_value * block_size + slot;
  }
};

// T is the dtype of the model.
template <typename T, typename Given>
static inline Arena arena_of(const Given& args) {
  const Items items = Items(args.items);
  return {args.arena, args.num_kv_heads, args.block_size,           args.width,
          items,      args.unit_bytes,   items == Items::WIDE ? int64_t(sizeof(T)) : 1};
}

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef int16_t i16x16 __attribute__((vector_size(32)));

// Doubles the width twice: GCC would convert to four times the width item by item.
static inline u32x16 widen(u8x16 items) {
#if defined(__AVX512F__)
  return (u32x16)_mm512_maskz_cvtepu8_epi32(0xFFFF, (__m128i)items);
#endif
  return __builtin_convertvector(__builtin_convertvector(items, u16x16), u32x16);
}
static inline u8x16 narrow(u32x16 items) {
  return __builtin_convertvector(__builtin_convertvector(items, u16x16), u8x16);
}

static inline f32x16 from_int8(u8x16 items) {
  const i16x16 wider = __builtin_convertvector((i8x16)items, i16x16);
  return __builtin_convertvector(__builtin_convertvector(wider, i32x16), f32x16);
}

// Sign, exponent (4 bits) and mantissa (3 bits) are shifted to their places in float32; the product corrects the bias,
// and is exact for subnormal items, too.
static inline f32x16 from_fp8(u8x16 items) {
  const u32x16 wide = widen(items);
  const u32x16 bits = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20);
  return (f32x16)bits * 0x1p120f;
}

// For |x| <= 127; rounds to nearest, ties to even, as float32 has no fractions from 2^23 on.
static inline u8x16 to_int8(f32x16 x) {
  const f32x16 integers_only = splat(0x1.8p23f);
  return narrow((u32x16)(x + integers_only));
}

// For |x| <= 448; rounds to nearest, ties to even.
static inline u8x16 to_fp8(f32x16 x) {
  const u32x16 bits = (u32x16)x, sign = (bits >> 24) & 0x80, size = bits & 0x7FFFFFFF;
  const u32x16 normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120u << 3);
  // Below 2^-6 items are multiples of 2^-9; 2^-6 itself is the eighth and looks like the first normal.
  const u32x16 subnormal = (u32x16)((f32x16)size * 0x1p9f + splat(0x1.8p23f)) & 0xFF;
  const u32x16 is_small = (u32x16)(size < u32x16{} + 0x3C800000);
  return narrow(sign | (is_small ? subnormal : normal));
}

static inline u8x16 load_items(const uint8_t* p, int64_t count) {
  u8x16 items{};
  if (count >= 16)
    memcpy(&items, p, 16);
  else
    memcpy(&items, p, size_t(count));
  return items;
}

// Converts the items of one 8-bit row to T, exactly and without their scale, padded with zeros to `padded` (a multiple
// of 16). Shuffled: each group of four is in the order 0, 2, 1, 3.
constexpr int64_t SHUFFLED_ITEMS = 4;
template <typename T>
void convert(const uint8_t* items, Items kind, int64_t width, int64_t padded, bool is_shuffled, T* out);
