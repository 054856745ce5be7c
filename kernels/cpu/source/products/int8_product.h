// Products with int8 weights, one scale an output; see kernels/products/int8_weight.py.
#pragma once

#include "quantized_linear.h"

// panels [K / 4][32][4] of u = w + 128, scales [panels][32]
struct Int8Product {
  static constexpr int MAX_ROWS = MAX_TILE_ROWS, LINES = 2;
  Int8Rows rows;
  const uint8_t* weights;
  const float* scales;
  int64_t panel_bytes;

  // By the weights, or by those of one of several experts.
  Int8Product(const Int8Rows& rows, const QuantizedWeights& of, int64_t expert = 0, int64_t num_panels = 0)
      : rows(rows),
        weights(of.panels + expert * num_panels * PANEL * rows.width),
        scales(of.scales + expert * num_panels * PANEL),
        panel_bytes(PANEL * rows.width) {}

  // Compiled once, in int8_product.cpp, for all that multiply by such weights.
  void multiply(Asking asking, Span rows, int64_t panel, const uint8_t* next, float* sums) const;

  template <int ROWS, Asking ASKING>
  void multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const;
};
