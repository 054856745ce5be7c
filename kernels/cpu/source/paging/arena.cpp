// Rows of 8-bit items as attention takes them.
#include "arena.h"

template <typename T>
void dequantize(const uint8_t* items, float scale, Items kind, int64_t width, int64_t padded, T* out) {
  for (int64_t d = 0; d < padded; d += 16) {
    const u8x16 bytes = d < width ? load_items(items + d, width - d) : u8x16{};
    const f32x16 x = kind == Items::INT8 ? from_int8(bytes) : from_fp8(bytes);
    store(out + d, x * splat(scale));
  }
}

template void dequantize(const uint8_t*, float, Items, int64_t, int64_t, float*);
template void dequantize(const uint8_t*, float, Items, int64_t, int64_t, bf16*);
