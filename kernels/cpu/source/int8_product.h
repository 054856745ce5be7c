// Products with int8 weights, one scale an output; see kernels/int8_weight.py.
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

  template <int ROWS, Asking ASKING>
  void multiply(int64_t row, int64_t panel, const uint8_t* next, float* y) const {
    const uint8_t* u = weights + panel * panel_bytes;
    const int8_t* q = rows.values(row);
    Ints sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < VECTORS; v++) sums[r][v] = Ints{} + rows.offset(row + r);
    for (int64_t k = 0; k < rows.width; k += 4) {
      Bytes w[VECTORS];
#pragma GCC unroll 8  // as one copy, they would go through memory
      for (int v = 0; v < VECTORS; v++) w[v] = load_bytes(u + k * PANEL + v * LANES * 4);
      ask<ASKING, LINES>(next + k * PANEL);
      for (int r = 0; r < ROWS; r++) {
        const int32_t four = four_bytes(q + r * rows.stride + k);
        for (int v = 0; v < VECTORS; v++) sums[r][v] = dot(sums[r][v], w[v], four);
      }
    }
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) {
        Lanes scale;
        memcpy(&scale, scales + panel * PANEL + v * LANES, sizeof scale);
        const Lanes value = to_floats(sums[r][v]) * scale * rows.scale(row + r);
        memcpy(y + r * PANEL + v * LANES, &value, sizeof value);
      }
    }
  }
};
