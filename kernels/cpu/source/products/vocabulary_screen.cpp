// The best or the drawn token of each row of hidden states without all of its logits; see
// kernels/products/vocabulary_screen.py, which has the bounds and why they hold.
#include <cmath>
#include <limits>

#include "int8_product.h"
#include "token_search.h"

namespace {

constexpr float LEAST = -std::numeric_limits<float>::infinity();
constexpr float TINY_LENGTH = 1e-16f;  // more than squares that underflow can hide
constexpr int64_t FINE_ROWS = 4;

// A length from the sum of its squares, rounded up.
inline float length_of(float squares, double slack) {
  return float(std::sqrt(double(squares)) * (1 + slack)) + TINY_LENGTH;
}

// Step k of 16 columns of a packed panel.
inline f32x16 weights_at(const float* panel, int64_t k, int64_t column) { return load(panel + k * PANEL + column); }

inline f32x16 weights_at(const bf16* panel, int64_t k, int64_t column) {
  u32x16 pairs;
  memcpy(&pairs, panel + (k / 2 * PANEL + column) * 2, sizeof pairs);
  return (f32x16)(k % 2 ? pairs & 0xFFFF0000u : pairs << 16);
}

template <typename T>
struct RoundHeadArgs : Args {
  FIELDS(Args,
         const T* weight;   // packed
         uint8_t* rounded;  // [rows][K / 4][32][4] of q + 128
         float* scales;     // [rows][32]
         float* errors;     // [rows][32]
         float* lengths;    // [rows][32]
         int64_t width;
         int64_t padded_width;
         double slack;)
};

// Sixteen columns of a panel, as kernels/products/int8_weight.py rounds rows of W, and the lengths of both parts.
template <typename T>
void round_columns(const RoundHeadArgs<T>& args, int64_t panel, int64_t column) {
  const T* weight = args.weight + panel * args.width * PANEL;
  uint8_t* rounded = args.rounded + (panel * args.padded_width * PANEL + column * 4);
  const int64_t first = panel * PANEL + column;
  f32x16 limit{}, poison{};
  for (int64_t k = 0; k < args.width; k++) {
    const f32x16 w = weights_at(weight, k, column);
    limit = larger(absolute(w), limit);
    poison += w * 0.0f;
  }
  const f32x16 inverse = limit > TINY ? 127.0f / limit : splat(0), scale = limit / 127.0f + poison;
  f32x16 errors{}, lengths{};
  for (int64_t k = 0; k < args.padded_width; k += 4) {
    i32x16 four{};
    for (int64_t i = 0; i < 4; i++) {
      const f32x16 w = k + i < args.width ? weights_at(weight, k + i, column) : splat(0);
      const f32x16 q = nearest(w * inverse), kept = scale * q, error = fma(-scale, q, w);
      four |= ((to_int(q) + 128) & 255) << int32_t(8 * i);
      errors = fma(error, error, errors);
      lengths = fma(kept, kept, lengths);
    }
    memcpy(rounded + k * PANEL, &four, sizeof four);
  }
  store(args.scales + first, scale);
  for (int i = 0; i < 16; i++) {
    const float error = length_of(errors[i], args.slack), length = length_of(lengths[i], args.slack);
    args.errors[first + i] = error + float(args.slack) * (error + length);
    args.lengths[first + i] = length + float(args.slack) * length;
  }
}

template <typename T>
void round_head(const RoundHeadArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t num_panels = row_count(args, pass);
  Span panels;
  while (work.take(num_panels, grain_of(num_panels, work), panels))
    for (int64_t panel = panels.begin; panel < panels.end; panel++)
      for (int64_t column = 0; column < PANEL; column += 16) round_columns(args, panel, column);
}

template <typename T>
struct RoundRowsArgs : Args {
  FIELDS(Args,
         const T* x;       // [rows][width]
         uint8_t* coarse;  // [rows][row_bytes]: x in eight bits; see int8_rows.h
         uint8_t* fine;    // [rows][row_bytes]: what that leaves out, in eight bits more, if rows are few
         float* bounds;    // [rows][2]: the length of x, and of what is left out
         int64_t width;
         int64_t padded_width;
         int64_t row_bytes;
         int64_t stride;
         double slack;)
};

// Whether x has 16 bits. With few rows reading W takes so long that the second product costs nothing.
inline bool is_fine(int64_t num_rows) { return num_rows <= FINE_ROWS; }

// left [width] = x - what its rounded row stands for; returns the sum of the squares.
template <typename T>
float leave_out(const T* x, int64_t width, const Int8Rows& rounded, int64_t row, float* left) {
  const f32x16 scale = splat(-rounded.scale(row));
  f32x16 squares{};
  for (int64_t k = 0; k < width; k += 16) {
    i8x16 q;
    memcpy(&q, rounded.values(row) + k, sizeof q);
    const f32x16 error = fma(scale, __builtin_convertvector(q, f32x16), load_padded(x, k, width));
    store_up_to(left + k, error, width - k);
    squares = fma(error, error, squares);
  }
  return sum(squares);
}

template <typename T>
float squares_of(const T* x, int64_t width) {
  f32x16 squares{};
  for (int64_t k = 0; k < width; k += 16) {
    const f32x16 v = load_padded(x, k, width);
    squares = fma(v, v, squares);
  }
  return sum(squares);
}

template <typename T>
void round_rows(const RoundRowsArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width, num_rows = row_count(args, pass);
  const Int8Rows coarse{args.coarse, args.padded_width, args.row_bytes};
  const Int8Rows fine{args.fine, args.padded_width, args.row_bytes};
  Span rows;
  while (work.take(num_rows, 1, rows))
    for (int64_t row = rows.begin; row < rows.end; row++) {
      float* left = static_cast<float*>(work.scratch(size_t(width) * sizeof(float)));
      const T* x = args.x + row * args.stride;
      round_row(x, width, coarse, row);
      float squares = leave_out(x, width, coarse, row, left);
      if (is_fine(num_rows)) {
        round_row(left, width, fine, row);
        squares = leave_out(left, width, fine, row, left);
      }
      args.bounds[2 * row] = length_of(squares_of(x, width), args.slack);
      args.bounds[2 * row + 1] = length_of(squares, args.slack);
    }
}

struct PanelBoundsArgs : Args {
  FIELDS(Args,
         uint8_t* coarse;         // [rows][row_bytes]
         uint8_t* fine;           // [rows][row_bytes]
         const uint8_t* weights;  // panels
         const float* scales;     // [panels][32]
         const float* errors;     // [panels][32]
         const float* lengths;    // [panels][32]
         const float* bounds;     // [rows][2]
         float* highest;          // [rows][panels]: no logit of the panel is above it
         float* lowest;           // [rows][panels]: one logit of the panel is not below it
         int64_t num_outputs;
         int64_t padded_width;
         int64_t row_bytes;)
};

// Bounds of the logits of a row and a panel.
struct BoundPanel {
  const PanelBoundsArgs& args;

  int64_t num_panels() const { return (args.num_outputs + PANEL - 1) / PANEL; }

  void operator()(int64_t row, int64_t panel, const float* sums) const {
    const f32x16 length = splat(args.bounds[2 * row]), error = splat(args.bounds[2 * row + 1]);
    f32x16 high = splat(LEAST), low = high;
    for (int64_t half = 0; half < PANEL; half += 16) {
      const int64_t first = panel * PANEL + half, count = args.num_outputs - first;
      const f32x16 of_x = error * load(args.lengths + first);
      const f32x16 wide = fma(length, load(args.errors + first), of_x), about = load(sums + half);
      f32x16 above = about + wide, below = about - wide;
      for (int64_t i = std::max<int64_t>(count, 0); i < 16; i++) above[i] = below[i] = LEAST;
      high = larger(above, high);
      low = larger(below, low);
    }
    args.highest[row * num_panels() + panel] = largest(high);
    args.lowest[row * num_panels() + panel] = largest(low);
  }
};

// Products of x as the sum of two rows of eight bits each. The second reads a panel from the cache.
struct FineProduct {
  static constexpr int LINES = Int8Product::LINES;
  static constexpr int64_t MOST_ROWS = Int8Product::MOST_ROWS;
  static int64_t tile_rows() { return Int8Product::tile_rows(); }
  static bool multiplies_by_tiles(int64_t rows) { return Int8Product::multiplies_by_tiles(rows); }
  Int8Product coarse, fine;
  const uint8_t* weights = coarse.weights;
  int64_t panel_bytes = coarse.panel_bytes;

  void multiply(PrefetchLines lines, Span rows, int64_t panel, const uint8_t* next, float* sums) const {
    alignas(64) float more[FINE_ROWS * PANEL];
    coarse.multiply(lines, rows, panel, next, sums);
    fine.multiply(PrefetchLines::NONE, rows, panel, next, more);
    for (int64_t i = 0; i < (rows.end - rows.begin) * PANEL; i++) sums[i] += more[i];
  }
};

template <typename T>
void find_tokens(const FindTokensArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t num_rows = row_count(args, pass);
  const Factors<T> factors{args.x, args.stride, args.weight, num_rows, args.width / Step<T>::DEPTH};
  Span rows;
  while (work.take(num_rows, 1, rows))
    for (int64_t row = rows.begin; row < rows.end; row++) {
      TokenSearch search(args, factors, row, work.scratch(TokenSearch<T>::room_bytes(args.num_panels)));
      args.tokens[row] = search.run();
      args.nums_computed[row] = search.num_computed();
    }
}

}  // namespace

OPERATOR(round_head_f32, RoundHeadArgs<float>) { round_head(args, pass, work); }
OPERATOR(round_head_bf16, RoundHeadArgs<bf16>) { round_head(args, pass, work); }

OPERATOR(screen_rows_f32, RoundRowsArgs<float>) { round_rows(args, pass, work); }
OPERATOR(screen_rows_bf16, RoundRowsArgs<bf16>) { round_rows(args, pass, work); }

OPERATOR(panel_bounds, PanelBoundsArgs) {
  const int64_t num_rows = row_count(args, pass);
  const auto product_with = [&](uint8_t* x) {
    return Int8Product({x, args.padded_width, args.row_bytes}, {args.weights, args.scales});
  };
  const BoundPanel finish{args};
  if (is_fine(num_rows)) {
    const FineProduct product{product_with(args.coarse), product_with(args.fine)};
    Multiplication(product, finish).run(num_rows, work);
  } else {
    const Int8Product product = product_with(args.coarse);
    Multiplication(product, finish).run(num_rows, work);
  }
}

OPERATOR(find_tokens_f32, FindTokensArgs<float>) { find_tokens(args, pass, work); }
OPERATOR(find_tokens_bf16, FindTokensArgs<bf16>) { find_tokens(args, pass, work); }
