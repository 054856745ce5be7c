// Norm over each head, rotation, and storing K and V; see kernels/cache_write/rope_kv_write.py.
#include "head_rows.h"

namespace {

// The largest |x|; NaN if any item is NaN.
float largest_size(const float* x, int64_t width) {
  f32x16 size{}, nan_or_zero{};
  for (int64_t d = 0; d < width; d += 16) {
    const f32x16 v = load_up_to(x + d, width - d), magnitude = v < 0 ? -v : v;
    size = magnitude > size ? magnitude : size;
    nan_or_zero += v * splat(0);
  }
  return largest(size) + sum(nan_or_zero);
}

// Quantizes x to 8 bits; see kernels/paging/kv_quantize.py. A row with NaN gets a NaN scale and items of 0.
void quantize(const float* x, int64_t width, Items kind, uint8_t* items, float* scale) {
  const float largest = kind == Items::INT8 ? 127.0f : 448.0f;
  *scale = largest_size(x, width) / largest;
  if (*scale != *scale) {
    memset(items, 0, size_t(width));
    return;
  }
  const f32x16 divisor = splat(*scale > 0 ? *scale : 1.0f);
  for (int64_t d = 0; d < width; d += 16) {
    const int64_t count = width - d;
    f32x16 y = load_up_to(x + d, count) / divisor;  // may pass the largest item by a rounding
    y = y < splat(largest) ? y : splat(largest);
    y = y > splat(-largest) ? y : splat(-largest);
    const u8x16 bytes = kind == Items::INT8 ? to_int8(y) : to_fp8(y);
    memcpy(items + d, &bytes, size_t(std::min<int64_t>(16, count)));
  }
}

// Stores a row of K or V. `wide`: working memory for a row of floats.
template <typename T>
void write(const HeadRows<T>& rows, const T* x, int64_t token, int64_t request, int64_t head, bool is_value,
           float* wide) {
  const Arena& arena = rows.arena;
  const int64_t position = rows.positions[token], slot = position % arena.block_size;
  const int64_t block = rows.block_tables[request * rows.table_stride + position / arena.block_size];
  uint8_t* unit = arena.unit(block, head);
  uint8_t* row = arena.row(unit, is_value, slot);
  const int64_t width = arena.width;
  for (int64_t d = 0; d < width; d += 16) {
    const int64_t count = width - d;
    const f32x16 v = nan_if_infinite(load_up_to(x + d, count));
    if (arena.items == Items::WIDE)
      store_up_to(reinterpret_cast<T*>(row) + d, v, count);
    else
      store_up_to(wide + d, v, count);
  }
  if (arena.items != Items::WIDE)
    quantize(wide, width, arena.items, row, arena.scale(unit, is_value, slot));
}

template <typename T>
void run(const HeadRowsArgs<T>& args, const Pass& pass, Work& work) {
  const HeadRows<T> rows(args);
  const int64_t width = rows.arena.width, count = row_count(args, pass) * rows.heads_a_token();
  float* wide = static_cast<float*>(work.scratch(size_t(width) * (sizeof(float) + sizeof(T))));
  T* copy = reinterpret_cast<T*>(wide + width);
  int64_t request = 0;
  Span span;
  while (work.take(count, grain_of(count, work), span))
    for (int64_t item = span.begin; item < span.end; item++)
      rows.prepare(item, request, copy, [&](const T* x, int64_t token, int64_t of, int64_t head, bool is_value) {
        write(rows, x, token, of, head, is_value, wide);
      });
}

}  // namespace

OPERATOR(rope_kv_write_f32, HeadRowsArgs<float>) { run<float>(args, pass, work); }
OPERATOR(rope_kv_write_bf16, HeadRowsArgs<bf16>) { run<bf16>(args, pass, work); }
