// Rows of x times 32 columns of W^T by matrix tiles, 32 rows at a time, for bfloat16 or bytes.
//
// Steps are those of linear_tile.h, four bytes of a row: two bfloat16 or four bytes. The steps are padded with zeros to
// a multiple of 16. Each sum is accumulated 16 steps at a time, in order, whatever the number of rows, so results are
// batch-invariant. More than 32 rows are multiplied by one piece of the panel after the other, each of which stays in
// the core's L1 cache meanwhile. Vectors add bfloat16 products in another order, so a process uses tiles either always
// or never.
#pragma once

#include <atomic>
#include <cstdint>

#include "amx_tiles.h"

constexpr int64_t AMX_ROWS = 2 * TILE_ROWS_MOST, AMX_BLOCK_ROWS = 256;  // at once, and in one call

enum class Tiles : int { NONE, AMX, EMULATED };

#if HAS_AMX
extern std::atomic<Tiles> tiles_in_use;  // of this process; changed when nothing is multiplied

static inline bool uses_tiles() { return tiles_in_use.load(std::memory_order_relaxed) != Tiles::NONE; }
#else
static constexpr bool uses_tiles() { return false; }
#endif

// Rows, `stride` bytes apart, times the steps of a panel, `panel_stride` bytes apart.
struct TileFactors {
  const void* x;
  int64_t stride;
  const void* panel;
  int64_t num_steps;
  int64_t panel_stride = 2 * TILE_ROW_BYTES;
};

// What to prefetch meanwhile: `advance` bytes per step, in lines that are `apart` bytes apart.
struct TilePrefetch {
  const char* next;
  int64_t advance;
  int64_t apart = 64;
};

// sums [rows][32] of 1 to AMX_BLOCK_ROWS rows, by the tiles in use.
void multiply_bf16_by_tiles(int64_t rows, const TileFactors& factors, TilePrefetch ahead, float* sums);

// The same with rows of sums `stride` floats apart; added to the present values if `is_more`.
void multiply_bf16_by_tiles(int64_t rows, const TileFactors& factors, bool is_more, float* sums, int64_t stride);

// Signed bytes of x times unsigned bytes of the panel: exact.
void multiply_int8_by_tiles(int64_t rows, const TileFactors& factors, TilePrefetch ahead, int32_t* sums);

// Called after every operator, so that other code on the thread finds its tiles as if never used.
void release_tiles();
