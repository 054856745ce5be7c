// Products by matrix tiles; they use all eight tiles of a thread.
//
//   sums    rows [0, 16)  x columns [0, 16) [16, 32)   tiles 0 1
//                [16, 32)                                    2 3
//   x       rows [0, 16) [16, 32)                            4 5    16 steps: 64 bytes of a row
//   panel   columns [0, 16) [16, 32)                         6 7    16 steps of 128 bytes
//
// A group of int4 weights, which share a scale, has 8 steps.
#include "amx_product.h"

#include <algorithm>
#include <cstring>

#include "amx_emulated.h"
#include "amx_tiles.h"

#if HAS_AMX
std::atomic<Tiles> tiles_in_use{Tiles::NONE};

namespace {

constexpr int64_t STEPS = 16, GROUP_STEPS = 8;  // of a tile
constexpr int64_t PIECE_STEPS = 256;          // of a panel: 32 KiB
constexpr int64_t PANEL_STEP_BYTES = 2 * TILE_ROW_BYTES;

thread_local int64_t configured_rows = 0, configured_steps = 0;  // no rows where tiles are released

template <typename T>
void configure(int64_t rows, int64_t steps) {
  if (rows == configured_rows && steps == configured_steps) return;
  const int64_t upper = std::min(rows, TILE_ROWS_MOST), lower = rows - upper;
  TileShapes shapes;
  for (int tile : {0, 1}) shapes.set(tile, upper);
  for (int tile : {2, 3}) shapes.set(tile, lower);
  shapes.set(4, upper, steps * 4);
  shapes.set(5, lower, steps * 4);
  for (int tile : {6, 7}) shapes.set(tile, steps);
  T::configure(shapes);
  configured_rows = rows;
  configured_steps = steps;
}

struct Bf16 {
  static constexpr bool HAS_GROUPS = false;

  template <typename T, int SUMS, int A, int B>
  static void dot() {
    T::template dot_bf16<SUMS, A, B>();
  }
};

struct Int8 {
  static constexpr bool HAS_GROUPS = true;

  template <typename T, int SUMS, int A, int B>
  static void dot() {
    T::template dot_int8<SUMS, A, B>();
  }
};

// Sums of rows x 32 columns.
struct TileSums {
  void* first;
  int64_t stride;  // bytes
  bool is_more;    // added to what is there
};

// Adds the steps of one more tile to the sums.
template <typename T, typename Items, bool IS_LOWER>
inline void add_steps(const char* x, int64_t stride, const char* panel, int64_t panel_stride) {
  T::template load<6>(panel, panel_stride);
  T::template load<4>(x, stride);
  Items::template dot<T, 0, 4, 6>();
  T::template load<7>(panel + TILE_ROW_BYTES, panel_stride);
  Items::template dot<T, 1, 4, 7>();
  if constexpr (IS_LOWER) {
    T::template load<5>(x + TILE_ROWS_MOST * stride, stride);
    Items::template dot<T, 2, 5, 6>();
    Items::template dot<T, 3, 5, 7>();
  }
}

void fetch_lines(TilePrefetch& ahead, int64_t steps) {
  const char* end = ahead.next + steps * ahead.advance;
  for (const char* line = ahead.next; line < end; line += ahead.apart) __builtin_prefetch(line, 0, 2);
  ahead.next = end;
}

template <typename T, bool IS_LOWER>
void begin_sums(TileSums sums) {
  if (!sums.is_more) {
    T::template zero<0>();
    T::template zero<1>();
    if constexpr (IS_LOWER) {
      T::template zero<2>();
      T::template zero<3>();
    }
    return;
  }
  const char* first = static_cast<const char*>(sums.first);
  T::template load<0>(first, sums.stride);
  T::template load<1>(first + TILE_ROW_BYTES, sums.stride);
  if constexpr (IS_LOWER) {
    first += TILE_ROWS_MOST * sums.stride;
    T::template load<2>(first, sums.stride);
    T::template load<3>(first + TILE_ROW_BYTES, sums.stride);
  }
}

template <typename T, typename Items, bool IS_LOWER>
void multiply_rows(int64_t rows, const TileFactors& factors, int64_t steps, TilePrefetch& ahead, TileSums sums) {
  const char* x = static_cast<const char*>(factors.x);
  const char* panel = static_cast<const char*>(factors.panel);
  begin_sums<T, IS_LOWER>(sums);
  int64_t left = factors.num_steps;
  for (; left >= steps; left -= steps) {
    add_steps<T, Items, IS_LOWER>(x, factors.stride, panel, factors.panel_stride);
    fetch_lines(ahead, steps);
    x += TILE_ROW_BYTES;
    panel += STEPS * factors.panel_stride;
  }
  if (left > 0) {
    alignas(64) char last_x[AMX_ROWS][TILE_ROW_BYTES] = {}, last[STEPS * PANEL_STEP_BYTES] = {};
    for (int64_t row = 0; row < rows; row++) memcpy(last_x[row], x + row * factors.stride, size_t(left) * 4);
    for (int64_t step = 0; step < left; step++)
      memcpy(last + step * PANEL_STEP_BYTES, panel + step * factors.panel_stride, PANEL_STEP_BYTES);
    add_steps<T, Items, IS_LOWER>(last_x[0], TILE_ROW_BYTES, last, PANEL_STEP_BYTES);
  }
  char* out = static_cast<char*>(sums.first);
  T::template store<0>(out, sums.stride);
  T::template store<1>(out + TILE_ROW_BYTES, sums.stride);
  if constexpr (IS_LOWER) {
    out += TILE_ROWS_MOST * sums.stride;
    T::template store<2>(out, sums.stride);
    T::template store<3>(out + TILE_ROW_BYTES, sums.stride);
  }
}

template <typename T, typename Items>
void multiply_piece(int64_t rows, const TileFactors& factors, TilePrefetch& ahead, TileSums sums) {
  const int64_t steps = Items::HAS_GROUPS && factors.num_steps == GROUP_STEPS ? GROUP_STEPS : STEPS;
  configure<T>(rows, steps);
  if (rows > TILE_ROWS_MOST)
    multiply_rows<T, Items, true>(rows, factors, steps, ahead, sums);
  else
    multiply_rows<T, Items, false>(rows, factors, steps, ahead, sums);
}

// Prefetches are spread over all steps.
template <typename T, typename Items>
void multiply(int64_t rows, const TileFactors& factors, TilePrefetch ahead, TileSums sums) {
  if (rows <= AMX_ROWS) return multiply_piece<T, Items>(rows, factors, ahead, sums);
  for (int64_t step = 0; step < factors.num_steps; step += PIECE_STEPS)
    for (int64_t row = 0; row < rows; row += AMX_ROWS) {
      const TileFactors piece{static_cast<const char*>(factors.x) + row * factors.stride + step * 4, factors.stride,
                              static_cast<const char*>(factors.panel) + step * factors.panel_stride,
                              std::min(PIECE_STEPS, factors.num_steps - step), factors.panel_stride};
      multiply_piece<T, Items>(std::min(AMX_ROWS, rows - row), piece, ahead,
                               {static_cast<char*>(sums.first) + row * sums.stride, sums.stride,
                                sums.is_more || step > 0});
    }
}

template <typename Items>
void multiply_by_tiles(int64_t rows, const TileFactors& factors, TilePrefetch ahead, TileSums sums) {
  if (tiles_in_use.load(std::memory_order_relaxed) == Tiles::AMX)
    multiply<AmxTiles, Items>(rows, factors, ahead, sums);
  else
    multiply<EmulatedTiles, Items>(rows, factors, ahead, sums);
}

}  // namespace

void multiply_bf16_by_tiles(int64_t rows, const TileFactors& factors, TilePrefetch ahead, float* sums) {
  multiply_by_tiles<Bf16>(rows, factors, ahead, {sums, PANEL_STEP_BYTES, false});
}

void multiply_bf16_by_tiles(int64_t rows, const TileFactors& factors, bool is_more, float* sums, int64_t stride) {
  const TilePrefetch nothing{static_cast<const char*>(factors.panel), 0};
  multiply_by_tiles<Bf16>(rows, factors, nothing, {sums, stride * int64_t(sizeof(float)), is_more});
}

void multiply_int8_by_tiles(int64_t rows, const TileFactors& factors, TilePrefetch ahead, int32_t* sums) {
  multiply_by_tiles<Int8>(rows, factors, ahead, {sums, PANEL_STEP_BYTES, false});
}

void release_tiles() {
  if (configured_rows == 0) return;
  configured_rows = 0;
  if (tiles_in_use.load(std::memory_order_relaxed) == Tiles::AMX)
    AmxTiles::release();
  else
    EmulatedTiles::release();
}

#else

void multiply_bf16_by_tiles(int64_t, const TileFactors&, TilePrefetch, float*) {}
void multiply_bf16_by_tiles(int64_t, const TileFactors&, bool, float*, int64_t) {}
void multiply_int8_by_tiles(int64_t, const TileFactors&, TilePrefetch, int32_t*) {}
void release_tiles() {}

#endif
