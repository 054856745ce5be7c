// Quantizes weights to int8, and dequantizes rows of them; see kernels/products/int8_weight.py.
#include "quantized_panel.h"

namespace {

typedef uint8_t u8x16 __attribute__((vector_size(16)));

// Quantizes a row of W into a column of a panel and returns its scale, which is NaN if the row has an infinity or NaN:
// quantized, such an item would become an ordinary number.
template <typename T>
float quantize(const T* w, int64_t width, int64_t padded, uint8_t* panel, int64_t column) {
  f32x16 furthest{}, poison{};
  for (int64_t k = 0; k < width; k += 16) {
    const f32x16 v = load_padded(w, k, width);
    furthest = larger(absolute(v), furthest);
    poison = fma(v, f32x16{}, poison);
  }
  const float limit = largest(furthest);
  const f32x16 inverse = splat(limit > TINY ? 127.0f / limit : 0.0f);
  for (int64_t k = 0; k < padded; k += 16) {
    const i32x16 u = to_int(load_padded(w, k, width) * inverse) + 128;
    const u8x16 bytes = __builtin_convertvector(u, u8x16);
    uint32_t fours[4];
    memcpy(fours, &bytes, sizeof fours);
    for (int i = 0; i < 4; i++) memcpy(panel + (k + 4 * i) * PANEL + 4 * column, fours + i, 4);
  }
  return limit / 127.0f + sum(poison);
}

template <typename T>
void pack(const PackArgs<T>& args, Work& work) {
  const int64_t padded = args.padded_width;
  uint8_t* panels = args.panels;
  float* scales = args.scales;
  pack_panels<T>(args, work, [=](const T* w, int64_t width, int64_t panel, int64_t column) {
    scales[panel * PANEL + column] =
        quantize(w, width, padded, panels + panel * padded * PANEL, column);
  });
}

template <typename T>
void embedding(const QuantizedEmbeddingArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t padded = args.padded_width;
  const uint8_t* panels = args.panels;
  const float* scales = args.scales;
  embed<T>(args, pass, work, [=](int64_t row, int64_t k) {
    const uint8_t* panel = panels + row / PANEL * padded * PANEL;
    return float(panel[(k / 4 * PANEL + row % PANEL) * 4 + k % 4] - 128) * scales[row];
  });
}

}  // namespace

OPERATOR(int8_pack_f32, PackArgs<float>) { pack<float>(args, work); }
OPERATOR(int8_pack_bf16, PackArgs<bf16>) { pack<bf16>(args, work); }
OPERATOR(int8_embedding_f32, QuantizedEmbeddingArgs<float>) { embedding<float>(args, pass, work); }
OPERATOR(int8_embedding_bf16, QuantizedEmbeddingArgs<bf16>) { embedding<bf16>(args, pass, work); }
