// The products of attention over 8-bit items. Items are converted to bfloat16 in registers, which is exact, as the
// scales of rows are applied to scores and weights instead.
//
//   keys      four items of a row become two cells, of items 0 and 2 and of items 1 and 3
//   values    64 columns of two rows become four vectors of cells, out of order: see `byte_place`
//
// On other CPUs the products read rows that were converted to T (`convert` in arena.h), with the same sums.
#pragma once

#include "arena.h"
#include "attention_products.h"

#if defined(__AVX512VBMI__) && defined(__AVX512BF16__)
#define HAS_BYTE_CELLS 1
#else
#define HAS_BYTE_CELLS 0
#endif

template <typename T>
constexpr bool MULTIPLIES_BYTES = HAS_BYTE_CELLS && sizeof(T) == 2;

constexpr int64_t BYTE_COLUMNS = 64;  // that are read at once: widths are padded to as many

// The position of a column's sum among those of its 64 columns.
constexpr int64_t byte_place(int64_t column) {
  const int64_t lane = column / 16, item = column % 16;
  return (item / 8 * 2 + item % 2) * 16 + lane * 4 + item % 8 / 2;
}

constexpr int64_t FEW_BYTE_ROWS = 8;  // more would widen the same bytes twice

// Like the functions of attention_products.h for bfloat16, except that rows are bytes, and widths multiples of
// BYTE_COLUMNS.
void score_few_bytes(Items kind, int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells,
                     Floats scores, Upcoming& upcoming);
void mix_few_bytes(Items kind, int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth,
                   int64_t width, const float* factors, Floats out, Upcoming& upcoming);
void pack_key_bytes(Items kind, const uint8_t* const* keys, int64_t num_cells, Cell* out, int64_t stride);
void pack_value_bytes(Items kind, const uint8_t* const* values, int64_t width, Cell* out);
