// The two products of attention, scores = Q K^T and out = P V, as one: rows times a matrix of cells.
//
// They are compiled once, in attention_products.cpp, for all kinds of attention.
//
// For bfloat16 they use matrix tiles if the process does, with their own order of sums: attention_tiles.h.
//
// A cell is 32 bits: one float32, or two bfloat16 that are adjacent along the sum. So both types use the same loops,
// and differ in the product of two cells.
#pragma once

#include "lanes.h"
#include "simd.h"
#include "upcoming.h"

using Cell = uint32_t;

template <typename T>
constexpr int64_t PER_CELL = int64_t(sizeof(Cell) / sizeof(T));

// Rows of cells, `stride` apart.
struct Cells {
  const Cell* cells;
  int64_t stride;
};

struct Floats {
  float* floats;
  int64_t stride;
};

// Layouts of rows of cells: row by row, or interleaved by groups of QUERY_GROUP rows, so that all rows are found from
// one address, whatever the width.
//
//   WEIGHTS   [rows][WEIGHT_CELLS]                              of a chunk of keys
//   QUERIES   [rows / QUERY_GROUP][depth][QUERY_GROUP], for tiles [rows][depth]
enum class Rowwise { WEIGHTS, QUERIES };

constexpr int64_t CHUNK = 64;  // keys at once
constexpr int64_t QUERY_GROUP = 8;

template <typename T>
constexpr int64_t WEIGHT_CELLS = CHUNK / PER_CELL<T>;

// out [rows][width] = out * factor + a [rows][depth] b [depth][width], where width is a multiple of 16; without
// factors, a b. The first row is the first of a group. The result of a row does not depend on other rows: each sum runs
// along `depth`, from its first cell to its last.
template <typename T, Rowwise LAYOUT>
void multiply(int64_t rows, const Cell* a, int64_t group_stride, Cells b, int64_t depth, int64_t width,
              const float* factors, Floats out);

// The same for few rows, as in decoding: nothing is packed in memory. Keys are transposed and values interleaved in
// registers, and used at once. Each sum runs over the same cells in the same order as in `multiply`, so it has the same
// bits. What is read next is prefetched meanwhile: as many lines as are used, half of them with the keys.
constexpr int64_t FEW_ROWS = LANES == 16 ? 16 : 8;

// scores [rows][CHUNK] = queries [rows][num_cells] times CHUNK keys.
template <typename T>
void score_few(int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
               Upcoming& upcoming);

// out [rows][width] = out * factor + weights [rows][WEIGHT_CELLS] times `depth` cells of values. The width is a
// multiple of 16 cells.
template <typename T>
void mix_few(int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth, int64_t width,
             const float* factors, Floats out, Upcoming& upcoming);

// Packs QUERIES_AT_ONCE rows of `num_cells` into groups.
constexpr int64_t QUERIES_AT_ONCE = 16;
void group_queries(const uint8_t* const* rows, int64_t num_cells, Cell* groups);

// Packs 16 keys of `num_cells` (a multiple of 16) as columns of `out`, whose rows are `stride` apart.
void pack_keys(const uint8_t* const* keys, int64_t num_cells, Cell* out, int64_t stride);

// Packs one row of `width` cells.
template <typename T>
void pack_values(const uint8_t* const* values, int64_t width, Cell* out);
