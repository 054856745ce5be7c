// Some rows of x times some panels of W^T, with as many rows at a time as stay in the L2 cache.
//
// A panel comes from memory for the first tile of rows, and from the cache for the others.
#pragma once

#include <algorithm>

#include "linear_finish.h"

constexpr int64_t X_BYTES = 256 * 1024;  // of a block of rows
constexpr int64_t X_BYTES_OF_TILES = 1024 * 1024;  // every CPU with tiles has a second cache of 2 MiB
constexpr int64_t STREAM_AHEAD = 2048;   // bytes asked for before they are multiplied
constexpr int64_t EARLY_AHEAD = 8192;    // and early, into the second cache

template <typename T>
struct Factors {
  const T* x;
  int64_t x_stride;
  const T* weight;
  int64_t num_rows, num_steps;

  const T* panel(int64_t number) const { return weight + number * panel_items(); }
  int64_t panel_items() const { return num_steps * PANEL * Step<T>::DEPTH; }
};

// Blocks have equal sizes, or the last might read all panels for a few rows.
static inline int64_t rows_of_block(int64_t num_rows, int64_t row_bytes) {
  const int64_t bytes = uses_tiles() ? X_BYTES_OF_TILES : X_BYTES;
  const int64_t most = std::max<int64_t>(bytes / row_bytes, 32);
  const int64_t num_blocks = (num_rows + most - 1) / most;
  const int64_t rows = (num_rows + num_blocks - 1) / num_blocks;
  const int64_t of_tile = std::max(tile_rows<bf16>(), tile_rows<float>());
  return (rows + of_tile - 1) / of_tile * of_tile;
}

// Multiplies some rows by one panel, tile by tile.
template <typename T, int LEVEL, typename Finish>
__attribute__((noinline)) void multiply_panel(const Factors<T>& factors, Span rows, int64_t at_once, int64_t panel,
                                              Prefetch<LEVEL> ahead, const Finish& finish) {
  alignas(64) float sums[MOST_BLOCK_ROWS * PANEL];
  for (int64_t row = rows.begin; row < rows.end; row += at_once) {
    const int64_t count = std::min(rows.end - row, at_once);
    for (int64_t i = 0; i < count; i++) prefetch_outputs(finish, row + i, panel);
    multiply_rows(count, factors.x + row * factors.x_stride, factors.x_stride,
                  factors.panel(panel), factors.num_steps, ahead, sums);
    ahead.next += ahead.advance * factors.num_steps * ((count + tile_rows<T>() - 1) / tile_rows<T>());
    for (int64_t i = 0; i < count; i++) finish(row + i, panel, sums + i * PANEL);
  }
}

// Whether the panel itself is prefetched early. With few rows the CPU's hardware prefetcher is sufficient on huge pages;
// with more rows of AVX-512 vectors a step takes too long for it. A float panel is twice as long and seldom comes from
// memory, so few rows prefetch it, too, except two, which would lose a fifth when it does.
template <typename T>
static inline bool prefetches_early(int64_t rows) {
  const bool gains = sizeof(T) == sizeof(float) ? rows != 2 : rows > 4;
  return LANES == 16 && tile_rows<T>() == MAX_PLAIN_ROWS && gains;
}

// The estimated time of one thread for some rows and a panel: that of reading its bytes or of multiplying, whichever is
// longer.
template <typename T>
static inline int64_t ns_of_panel(int64_t rows, int64_t num_steps) {
  const int64_t from_memory = num_steps * STEP_BYTES / 16, multiplied = num_steps * rows / 2;
  return std::max(from_memory, multiplied);
}

// If there is one tile, the panel itself is prefetched a little before its use; otherwise each tile prefetches a part
// of the next panel. What follows the last panel is prefetched if it is `expected`.
template <typename T, typename Finish>
void multiply_panels(const Factors<T>& factors, Span rows, Span panels, bool is_more_expected, const Finish& finish) {
  const int64_t num_rows = rows.end - rows.begin;
  if (num_rows <= 0) return;
  const int64_t num_tiles = (num_rows + tile_rows<T>() - 1) / tile_rows<T>();
  const int64_t even = (num_rows + num_tiles - 1) / num_tiles;  // a tile of one row takes as long as of several
  const int64_t at_once = block_rows<T>() > tile_rows<T>() ? block_rows<T>() : even;
  for (int64_t panel = panels.begin; panel < panels.end; panel++) {
    const char* weights = reinterpret_cast<const char*>(factors.panel(panel));
    const bool is_last = panel + 1 == panels.end && !is_more_expected;
    if (num_tiles == 1 && prefetches_early<T>(num_rows))
      multiply_panel(factors, rows, at_once, panel, Prefetch<2>{weights + EARLY_AHEAD, STEP_BYTES}, finish);
    else if (num_tiles == 1)
      multiply_panel(factors, rows, at_once, panel, Prefetch<1>{weights + STREAM_AHEAD, STEP_BYTES}, finish);
    else if (is_last)
      multiply_panel(factors, rows, at_once, panel, Prefetch<2>{weights, 0}, finish);
    else
      multiply_panel(factors, rows, at_once, panel,
                     Prefetch<2>{weights + factors.num_steps * STEP_BYTES, STEP_BYTES / num_tiles},
                     finish);
  }
}
