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

  explicit Int8Product(const Args& args)
      : rows(rows_of(args)),
        weights(static_cast<const uint8_t*>(args.in[1])),
        scales(static_cast<const float*>(args.in[2])),
        panel_bytes(PANEL * rows.width) {}

  // By the weights of one of several experts.
  Int8Product(const Int8Rows& rows, const Args& args, int64_t expert, int64_t num_panels)
      : rows(rows),
        weights(static_cast<const uint8_t*>(args.in[1]) + expert * num_panels * PANEL * rows.width),
        scales(static_cast<const float*>(args.in[2]) + expert * num_panels * PANEL),
        panel_bytes(PANEL * rows.width) {}

  // Compiled once, in int8_product.cpp, for all that multiply by such weights.
  void multiply(Asking asking, Span rows, int64_t panel, const uint8_t* next, float* sums) const;

  template <int ROWS, Asking ASKING>
  void multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const;
};
