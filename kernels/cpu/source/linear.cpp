// Matrix products with packed weights; see kernels/packed_weight.py.
//
// The work is cut into blocks of rows, as many as stay in the second-level cache, and their panels.
// A panel comes from memory for the first tile of a block and from the cache for the others.
#include "linear_tile.h"

#include <algorithm>

#include "linear_finish.h"

namespace {

constexpr int64_t X_BYTES = 256 * 1024;  // of a block of rows
constexpr int64_t STREAM_AHEAD = 2048;   // bytes asked for before they are multiplied

template <typename T>
struct Factors {
  const T* x;
  int64_t x_stride;
  const T* weight;
  int64_t num_rows, num_steps;

  Factors(const Args& args, const Pass& pass)
      : x(static_cast<const T*>(args.in[0])),
        x_stride(args.i[2]),
        weight(static_cast<const T*>(args.in[1])),
        num_rows(row_count(args, pass)),
        num_steps(args.i[1] / Step<T>::DEPTH) {}

  const T* panel(int64_t number) const { return weight + number * panel_items(); }
  int64_t panel_items() const { return num_steps * PANEL * Step<T>::DEPTH; }
};

// Blocks are of one size, or the last would read all panels for a few rows.
int64_t rows_of_block(int64_t num_rows, int64_t row_bytes) {
  const int64_t most = std::max<int64_t>(X_BYTES / row_bytes, 32);
  const int64_t num_blocks = (num_rows + most - 1) / most;
  const int64_t rows = (num_rows + num_blocks - 1) / num_blocks;
  return (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS * MAX_TILE_ROWS;
}

// One panel of some rows, tile by tile.
template <typename T, int LEVEL, typename Finish>
void multiply_panel(const Factors<T>& factors, Span rows, int64_t panel, Ahead<LEVEL> ahead,
                    const Finish& finish) {
  alignas(64) float sums[MAX_TILE_ROWS * PANEL];
  for (int64_t row = rows.begin; row < rows.end; row += MAX_TILE_ROWS) {
    const int64_t count = std::min<int64_t>(rows.end - row, MAX_TILE_ROWS);
    multiply_rows(count, factors.x + row * factors.x_stride, factors.x_stride,
                  factors.panel(panel), factors.num_steps, ahead, sums);
    ahead.next += ahead.advance * factors.num_steps;
    for (int64_t i = 0; i < count; i++) finish(row + i, panel, sums + i * PANEL);
  }
}

// If one tile does, the panel itself is asked for a little before its use; else each tile asks for a
// part of the next panel. What is behind the last panel is never asked for: it is another thread's.
template <typename T, typename Finish>
void multiply_panels(const Factors<T>& factors, Span rows, Span panels, const Finish& finish) {
  const int64_t num_tiles = (rows.end - rows.begin + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
  for (int64_t panel = panels.begin; panel < panels.end; panel++) {
    const char* weights = reinterpret_cast<const char*>(factors.panel(panel));
    const bool is_last = panel + 1 == panels.end;
    if (num_tiles == 1)
      multiply_panel(factors, rows, panel, Ahead<1>{weights + STREAM_AHEAD, STEP_BYTES}, finish);
    else if (is_last)
      multiply_panel(factors, rows, panel, Ahead<2>{weights, 0}, finish);
    else
      multiply_panel(factors, rows, panel,
                     Ahead<2>{weights + factors.num_steps * STEP_BYTES, STEP_BYTES / num_tiles},
                     finish);
  }
}

template <typename T, typename Finish>
void multiply(const Factors<T>& factors, Work& work, const Finish& finish) {
  if (factors.num_rows == 0) return;
  const int64_t num_panels = finish.num_panels();
  const int64_t row_bytes = factors.num_steps * Step<T>::DEPTH * int64_t(sizeof(T));
  const int64_t block = rows_of_block(factors.num_rows, row_bytes);
  const int64_t num_blocks = (factors.num_rows + block - 1) / block;
  const int64_t num_items = num_blocks * num_panels;
  Span items;
  while (work.take(num_items, grain_of(num_items, work), items)) {
    while (items.begin < items.end) {
      const int64_t first = items.begin / num_panels * block, panel = items.begin % num_panels;
      const int64_t last = std::min(num_panels, panel + items.end - items.begin);
      multiply_panels(factors, {first, std::min(first + block, factors.num_rows)}, {panel, last},
                      finish);
      items.begin += last - panel;
    }
  }
}

template <typename T, typename Out>
void linear(const Args& args, const Pass& pass, Work& work) {
  const AddBias<T, Out> finish{static_cast<const T*>(args.in[2]), static_cast<Out*>(args.out[0]),
                               args.i[0]};
  multiply(Factors<T>(args, pass), work, finish);
}

template <typename T>
void gated_linear(const Args& args, const Pass& pass, Work& work) {
  const T* bias = static_cast<const T*>(args.in[2]);
  T* y = static_cast<T*>(args.out[0]);
  if (args.i[3])
    multiply(Factors<T>(args, pass), work, Gate<T, gelu_tanh>{bias, y, args.i[0] / 2});
  else
    multiply(Factors<T>(args, pass), work, Gate<T, silu>{bias, y, args.i[0] / 2});
}

}  // namespace

// in: x [rows][K], weight packed, bias [N] or null; out: y [rows][N]; i: N, K, items from row to row of x
OPERATOR(linear_f32) { linear<float, float>(args, pass, work); }
OPERATOR(linear_bf16) { linear<bf16, bf16>(args, pass, work); }

// The same; y is float.
OPERATOR(logits_f32) { linear<float, float>(args, pass, work); }
OPERATOR(logits_bf16) { linear<bf16, float>(args, pass, work); }

// The same of a gated weight; y is [rows][N / 2]; i[3]: 0 for silu, 1 for gelu in its tanh form
OPERATOR(gated_linear_f32) { gated_linear<float>(args, pass, work); }
OPERATOR(gated_linear_bf16) { gated_linear<bf16>(args, pass, work); }
