// The products of attention over bfloat16 with the sums in the order of matrix tiles (amx_product.h), if the process
// uses them.
//
//   many rows    by tiles
//   few rows     by vectors that add as tiles do: of each 16 cells the first items and the second ones apart, then
//                both, then to the sum, with denormals as zeros
//
// These functions replace those of attention_products.h with the same meaning.
#pragma once

#include "amx_product.h"
#include "attention_bytes.h"

// Most rows that use vectors. Tiles would give the same bits, but need packed keys and values, which by number of
// instructions costs as much as two rows by vectors; this was not timed on a CPU with tiles.
constexpr int64_t FEW_ROWS_BESIDE_TILES = 2;
constexpr int64_t TILE_CELLS = 16;    // of a sum, that are added together
constexpr int64_t TILE_COLUMNS = 32;  // of a product, at once

template <typename T>
static inline bool attends_by_tiles() {
  return sizeof(T) == 2 && uses_tiles();
}

// Like `multiply`, with `a` stored row by row. Cells beyond the depth, up to a multiple of TILE_CELLS, are read, and
// must be zeros in `a` or `b`; columns beyond the width, up to a multiple of TILE_COLUMNS, are read and written.
void multiply_by_tiles(int64_t rows, Cells a, Cells b, int64_t depth, int64_t width, const float* factors, Floats out);

void score_few_as_tiles(int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
                        Upcoming& upcoming);
void mix_few_as_tiles(int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth, int64_t width,
                      const float* factors, Floats out, Upcoming& upcoming);

void score_few_bytes_as_tiles(Items kind, int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells,
                              Floats scores, Upcoming& upcoming);
void mix_few_bytes_as_tiles(Items kind, int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth,
                            int64_t width, const float* factors, Floats out, Upcoming& upcoming);
