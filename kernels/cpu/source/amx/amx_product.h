// Rows of x times 32 columns of W^T by matrix tiles, 32 rows at once, of bfloat16 or of bytes.
//
// Steps are those of linear_tile.h, four bytes of a row: two bfloat16 or four bytes. What is behind the last
// step counts as zeros, to a multiple of 16. A sum is added to 16 steps at a time, in their order, whatever
// the number of rows, so it has the same bits for any. More than 32 rows go by a piece of the panel after the other,
// each of which stays in a core's first cache meanwhile. Vectors add bfloat16 in another order: a process
// multiplies them by tiles always or never.
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

// Rows, `stride` bytes apart, times a panel of so many steps, `panel_stride` bytes apart.
struct TileFactors {
  const void* x;
  int64_t stride;
  const void* panel;
  int64_t num_steps;
  int64_t panel_stride = 2 * TILE_ROW_BYTES;
};

// What will be read soon: asked for meanwhile, `advance` bytes a step, of which the lines that begin every
// `apart` bytes.
struct TilePrefetch {
  const char* next;
  int64_t advance;
  int64_t apart = 64;
};

// sums [rows][32] of 1 to AMX_BLOCK_ROWS rows, by the tiles that are in use.
void multiply_bf16_by_tiles(int64_t rows, const TileFactors& factors, TilePrefetch ahead, float* sums);

// The same, whose rows are `stride` floats apart; added to what is there, if `is_more`.
void multiply_bf16_by_tiles(int64_t rows, const TileFactors& factors, bool is_more, float* sums, int64_t stride);

// Of signed bytes of x and unsigned ones of the panel: exact.
void multiply_int8_by_tiles(int64_t rows, const TileFactors& factors, TilePrefetch ahead, int32_t* sums);

// Called behind every operator: whoever else runs on a thread finds its tiles as if never used.
void release_tiles();
