// Products with int4 weights, with one scale per output and group of 32; see kernels/products/int4_weight.py.
#pragma once

#include "quantized_linear.h"

// A panel is [K / 32] groups of scales and 4-bit items: see quantized_panel.h. The sums of a group are exact; groups
// are added in float, in order. Matrix tiles, which take whole bytes, therefore give the same results as vectors. They
// are used from the number of rows on for which vectors would unpack a panel twice.
struct Int4Product {
  static constexpr int MAX_ROWS = LANES == 16 ? 6 : HAS_NEON ? 4 : 1, LINES = INT4_GROUP_BYTES / 64;
  static constexpr int64_t MOST_ROWS = MOST_TILE_ROWS;
  static int64_t tile_rows() { return uses_tiles() ? AMX_ROWS : MAX_ROWS; }
  static bool multiplies_by_tiles(int64_t rows) { return uses_tiles() && rows > MAX_ROWS; }
  Int8Rows rows;
  const uint8_t* weights;
  int64_t panel_bytes;

  // For the weights, or for those of one of several experts.
  Int4Product(const Int8Rows& rows, const QuantizedWeights& of, int64_t expert = 0, int64_t num_panels = 0)
      : rows(rows),
        panel_bytes(rows.width / GROUP * INT4_GROUP_BYTES) {
    weights = of.panels + expert * num_panels * panel_bytes;
  }

  // Compiled once, in int4_product.cpp, for all operators with such weights.
  void multiply(PrefetchLines lines, Span rows, int64_t panel, const uint8_t* next, float* sums) const;

  template <int ROWS, PrefetchLines PREFETCH>
  void multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const;

 private:
  void multiply_by_tiles(PrefetchLines lines, Span of, int64_t panel, const uint8_t* next, float* y) const;

  template <int ROWS>
  void multiply_group(int64_t row, int64_t k, const uint8_t* halves, Ints (&sums)[ROWS][VECTORS]) const;
};
