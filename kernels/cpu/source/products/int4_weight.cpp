// Quantizes weights to int4, and dequantizes rows of them; see kernels/products/int4_weight.py.
#include "quantized_panel.h"

namespace {

// The scale with which the item of the largest magnitude becomes -8, since 8 does not exist. NaN if an item is infinite
// or NaN.
float scale_of(f32x16 low, f32x16 high) {
  const float top = largest(larger(low, high)), bottom = -largest(larger(-low, -high));
  const float poison = sum(low * 0.0f + high * 0.0f);
  const float scale = to_float(to_bf16((top > -bottom ? top : bottom) / -8.0f + poison));
  return std::fabs(scale) <= TINY ? 0.0f : scale;
}

i32x16 codes(f32x16 w, float inverse) {
  const i32x16 u = to_int(w * inverse) + 8;
  const i32x16 positive = u > 0 ? u : i32x16{};
  return positive < 15 ? positive : i32x16{} + 15;
}

// Quantizes a row of W into a column of a panel.
template <typename T>
void quantize(const T* w, int64_t width, int64_t padded, uint8_t* panel, int64_t column) {
  for (int64_t k = 0; k < padded; k += GROUP) {
    uint8_t* group = panel + k / GROUP * INT4_GROUP_BYTES;
    const f32x16 low = load_padded(w, k, width), high = load_padded(w, k + 16, width);
    const float scale = scale_of(low, high), inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    reinterpret_cast<bf16*>(group)[column] = to_bf16(scale);
    int32_t u[GROUP];
    const i32x16 both[2] = {codes(low, inverse), codes(high, inverse)};
    memcpy(u, both, sizeof u);
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++)
        group[SCALE_BYTES + (i * PANEL + column) * 4 + j] = uint8_t(u[8 * i + j] | u[8 * i + 4 + j] << 4);
  }
}

template <typename T>
void pack(const PackArgs<T>& args, Work& work) {
  const int64_t padded = args.padded_width, panel_bytes = padded / GROUP * INT4_GROUP_BYTES;
  uint8_t* panels = args.panels;
  pack_panels<T>(args, work, [=](const T* w, int64_t width, int64_t panel, int64_t column) {
    quantize(w, width, padded, panels + panel * panel_bytes, column);
  });
}

template <typename T>
void embedding(const QuantizedEmbeddingArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t panel_bytes = args.padded_width / GROUP * INT4_GROUP_BYTES;
  const uint8_t* panels = args.panels;
  embed<T>(args, pass, work, [=](int64_t row, int64_t k) {
    const int64_t column = row % PANEL, step = k % GROUP / 8;
    const uint8_t* group = panels + row / PANEL * panel_bytes + k / GROUP * INT4_GROUP_BYTES;
    const int byte = group[SCALE_BYTES + (step * PANEL + column) * 4 + k % 4];
    const int u = k % 8 < 4 ? byte & 15 : byte >> 4;
    return float(u - 8) * to_float(reinterpret_cast<const bf16*>(group)[column]);
  });
}

}  // namespace

OPERATOR(int4_pack_f32, PackArgs<float>) { pack<float>(args, work); }
OPERATOR(int4_pack_bf16, PackArgs<bf16>) { pack<bf16>(args, work); }
OPERATOR(int4_embedding_f32, QuantizedEmbeddingArgs<float>) { embedding<float>(args, pass, work); }
OPERATOR(int4_embedding_bf16, QuantizedEmbeddingArgs<bf16>) { embedding<bf16>(args, pass, work); }
