// Rows of any width, sixteen items at a time.
#pragma once

#include "simd.h"

constexpr int64_t ROWS_AT_ONCE = 4;

// All 16, or the first `count` padded with zeros.
template <typename T>
static inline f32x16 load_first(const T* p, int64_t count) {
  return count == 16 ? load(p) : load_part(p, count);
}

template <typename T>
static inline void store_first(T* p, f32x16 v, int64_t count) {
  if (count == 16)
    store(p, v);
  else
    store_part(p, v, count);
}

static inline f32x16 keep_first(f32x16 v, int64_t count) {
  const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lanes < int32_t(count) ? v : f32x16{};
}

// Calls do_part(start, count) for each 16 of `width` items, and for the rest.
template <typename DoPart>
static inline void for_each_part(int64_t width, DoPart do_part) {
  int64_t d = 0;
  for (; d + 16 <= width; d += 16) do_part(d, int64_t(16));
  if (d < width) do_part(d, width - d);
}

template <typename T>
static inline void add_rows(const T* x, const T* y, T* s, int64_t width) {
  for_each_part(width, [&](int64_t d, int64_t count) {
    store_first(s + d, load_first(x + d, count) + load_first(y + d, count), count);
  });
}
