// The layout of W [N, K] in panels of 32 columns, plain or gated.
//
//   plain   panel p holds rows 32 p to 32 p + 31
//   gated   W is G above U: 16 p to 16 p + 15 of each, G first
//
//   int8    panel [K / 4][32][4] bytes, u = w + 128
//   int4    panel [K / 32] groups; a group is scales [32] bf16, then [4][32][4] bytes: byte j of step i
//           has u = w + 8 of k = 8 i + j in its lower half and of 8 i + 4 + j in its upper
#pragma once

#include "int8_rows.h"
#include "linear_tile.h"

constexpr int64_t SCALE_BYTES = 2 * PANEL;
constexpr int64_t INT4_GROUP_BYTES = SCALE_BYTES + GROUP / 2 * PANEL;

struct PanelRows {
  int64_t num_rows;
  bool is_gated;

  // The row of W in a column; -1 after the last row.
  int64_t row_of(int64_t panel, int64_t column) const {
    if (!is_gated) {
      const int64_t row = panel * PANEL + column;
      return row < num_rows ? row : -1;
    }
    const int64_t half = num_rows / 2, row = panel * (PANEL / 2) + column % (PANEL / 2);
    return row < half ? row + column / (PANEL / 2) * half : -1;
  }
};

// The work is divided by panels.
template <typename T>
struct PackArgs : Args {
  FIELDS(Args,
         const T* weight;  // [num_outputs][width]
         uint8_t* panels;
         float* scales;    // [panels][32], or null: the panels have them
         int64_t num_outputs;
         int64_t width;
         int64_t padded_width;
         int64_t is_gated;)
};

// Fills all panels: `quantize(w, width, panel, column)` puts a row w into its column.
template <typename T, typename Quantize>
static inline void pack_panels(const PackArgs<T>& args, Work& work, const Quantize& quantize) {
  const int64_t width = args.width, num_panels = args.rows;
  const PanelRows rows{args.num_outputs, args.is_gated != 0};
  Span span;
  while (work.take(num_panels, grain_of(num_panels, work, 8), span)) {
    for (int64_t panel = span.begin; panel < span.end; panel++) {
      for (int64_t column = 0; column < PANEL; column++) {
        const int64_t row = rows.row_of(panel, column);
        const T* w = args.weight + (row < 0 ? 0 : row * width);
        quantize(w, row < 0 ? 0 : width, panel, column);
      }
    }
  }
}

template <typename T>
struct QuantizedEmbeddingArgs : Args {
  FIELDS(Args,
         const int64_t* ids;  // [tokens]
         const uint8_t* panels;
         const float* scales;
         T* y;                // [tokens][width]
         int64_t width;
         int64_t padded_width;
         double scale;)
};

// y = rows `ids` of a table of w(row, k), rounded to T, times a scale, with the result of a look-up in a table of T.
template <typename T, typename Number>
static inline void embed(const QuantizedEmbeddingArgs<T>& args, const Pass& pass, Work& work, const Number& number) {
  const int64_t width = args.width;
  const float scale = float(args.scale);
  Span span;
  while (work.take(row_count(args, pass), 1, span)) {
    for (int64_t token = span.begin; token < span.end; token++) {
      const int64_t row = args.ids[token];
      T* y = args.y + token * width;
      for (int64_t k = 0; k < width; k++) {
        T w;
        narrow(number(row, k), &w);
        narrow(to_float(w) * scale, y + k);
      }
    }
  }
}
