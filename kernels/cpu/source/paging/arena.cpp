// Converts rows of 8-bit items for attention.
#include "arena.h"

namespace {

void store_exact(float* p, f32x16 v) { store(p, v); }

// Stores numbers that bfloat16 holds exactly.
void store_exact(bf16* p, f32x16 v) {
  const u16x16 upper = __builtin_convertvector((u32x16)v >> 16, u16x16);
  memcpy(p, &upper, sizeof upper);
}

}  // namespace

template <typename T>
void convert(const uint8_t* items, Items kind, int64_t width, int64_t padded, bool is_shuffled, T* out) {
  for (int64_t d = 0; d < padded; d += 16) {
    u8x16 bytes = d < width ? load_items(items + d, width - d) : u8x16{};
    if (is_shuffled)
      bytes = __builtin_shufflevector(bytes, bytes, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    store_exact(out + d, kind == Items::INT8 ? from_int8(bytes) : from_fp8(bytes));
  }
}

template void convert(const uint8_t*, Items, int64_t, int64_t, bool, float*);
template void convert(const uint8_t*, Items, int64_t, int64_t, bool, bf16*);
