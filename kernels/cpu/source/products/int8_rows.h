// Rows of activations quantized to 8 bits, in the form that products with int8 and int4 weights read.
//
//   x = scale * q,  q in [-127, 127], one scale a row
//
//   bytes of a row:  q [K]   offset_of_group [K / 32] int32   offset int32   scale float   (padding)
//
// K is padded with zeros to whole groups of 32. Weights are stored unsigned, u = w + 8 or u = w + 128, because CPUs
// multiply unsigned by signed bytes. The excess in a product depends on the row only, and is subtracted again:
//
//   q . w = q . u - 8 sum(q)   or   q . u - 128 sum(q)
#pragma once

#include "functions.h"
#include "operator.h"

constexpr int64_t GROUP = 32;

// Rows with a smaller maximum count as 0: the inverse of their scale would overflow.
constexpr float TINY = 1e-30f;

struct Int8Rows {
  uint8_t* bytes;
  int64_t width;   // K, padded
  int64_t stride;  // bytes from row to row

  int8_t* values(int64_t row) const { return reinterpret_cast<int8_t*>(bytes + row * stride); }

  // -8 sum(q) of each group
  int32_t* group_offsets(int64_t row) const {
    return reinterpret_cast<int32_t*>(bytes + row * stride + width);
  }

  // -128 sum(q) of the row
  int32_t& offset(int64_t row) const { return group_offsets(row)[width / GROUP]; }

  float& scale(int64_t row) const { return reinterpret_cast<float*>(&offset(row))[1]; }
};

static inline f32x16 larger(f32x16 a, f32x16 b) { return a > b ? a : b; }

static inline i32x16 to_int(f32x16 v) { return __builtin_convertvector(nearest(v), i32x16); }

// 16 items from x[at] on, padded with zeros after x[width - 1].
template <typename T>
static inline f32x16 load_padded(const T* x, int64_t at, int64_t width) {
  if (at + 16 <= width) return load(x + at);
  return at < width ? load_part(x + at, width - at) : f32x16{};
}

typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));

static inline int32_t total(i32x16 v) {
  i32x8 halves[2];
  memcpy(halves, &v, sizeof v);
  const i32x8 both = halves[0] + halves[1];
  return both[0] + both[1] + both[2] + both[3] + both[4] + both[5] + both[6] + both[7];
}

// Quantizes a row of x. An infinity or NaN makes the scale NaN, and so all products of the row.
template <typename T>
static inline void round_row(const T* x, int64_t width, const Int8Rows& rows, int64_t row) {
  f32x16 furthest{}, poison{};
  for (int64_t k = 0; k < width; k += 16) {
    const f32x16 v = load_padded(x, k, width);
    furthest = larger(absolute(v), furthest);
    poison = fma(v, f32x16{}, poison);
  }
  const float limit = largest(furthest);
  const f32x16 inverse = splat(limit > TINY ? 127.0f / limit : 0.0f);
  int8_t* q = rows.values(row);
  int32_t* group_offsets = rows.group_offsets(row);
  int32_t total_of_row = 0;
  for (int64_t k = 0; k < rows.width; k += GROUP) {
    const i32x16 low = to_int(load_padded(x, k, width) * inverse);
    const i32x16 high = to_int(load_padded(x, k + 16, width) * inverse);
    const i8x16 bytes[2] = {__builtin_convertvector(low, i8x16),
                            __builtin_convertvector(high, i8x16)};
    memcpy(q + k, bytes, GROUP);
    const int32_t total_of_group = total(low + high);
    group_offsets[k / GROUP] = -8 * total_of_group;
    total_of_row += total_of_group;
  }
  rows.offset(row) = -128 * total_of_row;
  rows.scale(row) = limit / 127.0f + sum(poison);
}
