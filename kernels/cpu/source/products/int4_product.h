// Products with int4 weights, one scale an output and group of 32; see kernels/products/int4_weight.py.
#pragma once

#include "quantized_linear.h"

// panels [K / 32] groups of scales and halves of bytes: see quantized_panel.h. The sums of a group are
// exact; groups are added up in float, in their order. So the matrix tiles of a CPU, which take whole bytes, give
// what vectors give: they are used from as many rows on as would have vectors unpack a panel twice.
struct Int4Product {
  static constexpr int MAX_ROWS = LANES == 16 ? 6 : HAS_NEON ? 4 : 1, LINES = INT4_GROUP_BYTES / 64;
  static constexpr int64_t MOST_ROWS = MOST_TILE_ROWS;
  static int64_t tile_rows() { return uses_tiles() ? AMX_ROWS : MAX_ROWS; }
  static bool goes_by_tiles(int64_t rows) { return uses_tiles() && rows > MAX_ROWS; }
  Int8Rows rows;
  const uint8_t* weights;
  int64_t panel_bytes;

  // By the weights, or by those of one of several experts.
  Int4Product(const Int8Rows& rows, const QuantizedWeights& of, int64_t expert = 0, int64_t num_panels = 0)
      : rows(rows),
        panel_bytes(rows.width / GROUP * INT4_GROUP_BYTES) {
    weights = of.panels + expert * num_panels * panel_bytes;
  }

  // Compiled once, in int4_product.cpp, for all that multiply by such weights.
  void multiply(PrefetchLines lines, Span rows, int64_t panel, const uint8_t* next, float* sums) const;

  template <int ROWS, PrefetchLines PREFETCH>
  void multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const;

 private:
  void multiply_by_tiles(PrefetchLines lines, Span of, int64_t panel, const uint8_t* next, float* y) const;

  template <int ROWS>
  void multiply_group(int64_t row, int64_t k, const uint8_t* halves, Ints (&sums)[ROWS][VECTORS]) const;
};
