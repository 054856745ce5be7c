// The products of attention over 8-bit items, which become bfloat16 in registers: exactly, for the scales of
// rows are multiplied into scores and weights.
//
//   keys      four items of a row become two cells, of items 0 and 2 and of items 1 and 3
//   values    64 columns of two rows become four vectors of cells, out of order: see `byte_place`
//
// The other kinds of CPU take rows of T made of the same items (`convert` in arena.h), whose sums are the same.
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

// Where the sum of a column lies among those of its 64.
constexpr int64_t byte_place(int64_t column) {
  const int64_t lane = column / 16, item = column % 16;
  return (item / 8 * 2 + item % 2) * 16 + lane * 4 + item % 8 / 2;
}

constexpr int64_t FEW_BYTE_ROWS = 8;  // more would widen the same bytes twice

// As those of attention_products.h, of bfloat16; rows are bytes, and widths multiples of BYTE_COLUMNS.
void score_few_bytes(Items kind, int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells,
                     Floats scores, Upcoming& upcoming);
void mix_few_bytes(Items kind, int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth,
                   int64_t width, const float* factors, Floats out, Upcoming& upcoming);
void pack_key_bytes(Items kind, const uint8_t* const* keys, int64_t num_cells, Cell* out, int64_t stride);
void pack_value_bytes(Items kind, const uint8_t* const* values, int64_t width, Cell* out);
