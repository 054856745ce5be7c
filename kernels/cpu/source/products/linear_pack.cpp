// Packs a matrix of weights in the order in which products read it; see kernels/products/packed_weight.py.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "linear_tile.h"

namespace {

// Both dtypes are packed by words of four bytes: one float, or two adjacent bf16 items of a row.
constexpr int64_t WORDS_AT_ONCE = 16;  // a cache line

struct Matrix {
  const char* weight;
  int64_t num_rows, row_bytes;
  bool is_gated;

  // The row of a column of a panel; null after the last row.
  const char* row_of(int64_t panel, int64_t column) const {
    int64_t row = panel * PANEL + column, end = num_rows;
    if (is_gated) {
      const int64_t half = PANEL / 2, is_up = column / half;
      row = is_up * num_rows / 2 + panel * half + column % half;
      end = is_up ? num_rows : num_rows / 2;
    }
    return row < end ? weight + row * row_bytes : nullptr;
  }
};

void pack_panel(const Matrix& matrix, int64_t panel, uint32_t* packed) {
  const int64_t num_words = matrix.row_bytes / 4;
  for (int64_t first = 0; first < num_words; first += WORDS_AT_ONCE) {
    const int64_t count = std::min(WORDS_AT_ONCE, num_words - first);
    for (int64_t column = 0; column < PANEL; column++) {
      uint32_t words[WORDS_AT_ONCE] = {};
      const char* row = matrix.row_of(panel, column);
      if (row) memcpy(words, row + first * 4, size_t(count) * 4);
      for (int64_t i = 0; i < count; i++) packed[(first + i) * PANEL + column] = words[i];
    }
  }
}

struct PackWeightArgs : Args {
  FIELDS(Args,
         const char* weight;  // [rows][K]
         uint32_t* packed;    // [panels][K / 1 or 2][32][1 or 2]
         int64_t row_bytes;
         int64_t num_panels;
         int64_t is_gated;)
};

}  // namespace

OPERATOR(pack_weight, PackWeightArgs) {
  const Matrix matrix{args.weight, args.rows, args.row_bytes, args.is_gated != 0};
  const int64_t num_panels = args.num_panels;
  Span panels;
  while (work.take(num_panels, 4, panels)) {
    for (int64_t panel = panels.begin; panel < panels.end; panel++)
      pack_panel(matrix, panel, args.packed + panel * (args.row_bytes / 4) * PANEL);
  }
}
