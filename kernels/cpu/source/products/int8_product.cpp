// Tiles of products with int8 weights, for each number of rows that one can have.
#include "int8_product.h"

template <int ROWS, Asking ASKING>
void Int8Product::multiply_tile(int64_t row, int64_t panel, const uint8_t* next, float* y) const {
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

void Int8Product::multiply(Asking asking, Span rows, int64_t panel, const uint8_t* next, float* sums) const {
  run_tile_of(*this, asking, rows, panel, next, sums);
}
