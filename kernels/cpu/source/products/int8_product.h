// Products with int8 weights, with one scale per output; see kernels/products/int8_weight.py.
#pragma once

#include "quantized_linear.h"

// Panels [K / 4][32][4] of u = w + 128, scales [panels][32]. Matrix tiles are used if the process uses them.
struct Int8Product {
  static constexpr int MAX_ROWS = MAX_TILE_ROWS, LINES = 2;
  static constexpr int64_t MOST_ROWS = MOST_BLOCK_ROWS;
  static int64_t tile_rows() { return uses_tiles() ? AMX_BLOCK_ROWS : MAX_ROWS; }
  static bool multiplies_by_tiles(int64_t) { return uses_tiles(); }
  Int8Rows rows;
  const uint8_t* weights;
  const float* scales;
  int64_t panel_bytes;

  // For the weights, or for those of one of several experts.
  Int8Product(const Int8Rows& rows, const QuantizedWeights& of, int64_t expert = 0, int64_t num_panels = 0)
      : rows(rows),
        weights(of.panels + expert * num_panels * PANEL * rows.width),
        scales(of.scales + expert * num_panels * PANEL),
        panel_bytes(PANEL * rows.width) {}

  // Compiled once, in int8_product.cpp, for all operators with such weights.
  void multiply(PrefetchLines lines, Span rows, int64_t panel, const uint8_t* next, float* sums) const;

  template <int ROWS, PrefetchLines PREFETCH>
  void multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const;

 private:
  void multiply_by_tiles(PrefetchLines lines, Span rows, int64_t panel, const uint8_t* next, float* y) const;

  // Multiplies the integer sums of some columns by the scales of row and columns, and stores the floats.
  void store_scaled(Ints sums, int64_t row, int64_t column, float* y) const;
};
