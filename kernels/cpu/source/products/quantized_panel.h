// Which row of W [N, K] is kept where: column 0 to 31 of a panel, plain or gated.
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

  // -1 behind the last row.
  int64_t row_of(int64_t panel, int64_t column) const {
    if (!is_gated) {
      const int64_t row = panel * PANEL + column;
      return row < num_rows ? row : -1;
    }
    const int64_t half = num_rows / 2, row = panel * (PANEL / 2) + column % (PANEL / 2);
    return row < half ? row + column / (PANEL / 2) * half : -1;
  }
};

// Fill `num_panels` panels: `quantize(w, width, panel, column)` puts a row w into its column.
template <typename T, typename Quantize>
static inline void pack_panels(const Args& args, Work& work, const Quantize& quantize) {
  const int64_t width = args.i[0], num_panels = args.rows;
  const PanelRows rows{args.i[2], args.i[3] != 0};
  Span span;
  while (work.take(num_panels, grain_of(num_panels, work, 8), span)) {
    for (int64_t panel = span.begin; panel < span.end; panel++) {
      for (int64_t column = 0; column < PANEL; column++) {
        const int64_t row = rows.row_of(panel, column);
        const T* w = static_cast<const T*>(args.in[0]) + (row < 0 ? 0 : row * width);
        quantize(w, row < 0 ? 0 : width, panel, column);
      }
    }
  }
}

// y [tokens][K] = rows `ids` of a table of w(row, k), rounded to T, times a scale, as a look-up in a
// table of T would give.
template <typename T, typename Number>
static inline void embed(const Args& args, const Pass& pass, Work& work, const Number& number) {
  const int64_t width = args.i[0];
  const float scale = float(args.f[0]);
  Span span;
  while (work.take(row_count(args, pass), 1, span)) {
    for (int64_t token = span.begin; token < span.end; token++) {
      const int64_t row = static_cast<const int64_t*>(args.in[0])[token];
      T* y = static_cast<T*>(args.out[0]) + token * width;
      for (int64_t k = 0; k < width; k++) {
        T w;
        narrow(number(row, k), &w);
        narrow(to_float(w) * scale, y + k);
      }
    }
  }
}
