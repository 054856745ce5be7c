// The two products of attention, scores = Q K^T and out = P V, as one: rows times a matrix of cells.
//
// They are compiled once, in attention_products.cpp, for all kinds of attention.
//
// Of bfloat16 they go by matrix tiles where the process uses those, in an order of sums of their own:
// attention_tiles.h.
//
// A cell is 32 bits: one float32, or two bfloat16 that lie next to each other along the sum. So both
// types take the same loops, and differ in what happens to a pair of cells.
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

// Where the cells of a row lie: in its own row, or among those of the QUERY_GROUP rows of a group, so that
// all of them are found from one address, whatever the width.
//
//   WEIGHTS   [rows][WEIGHT_CELLS]                              of a chunk of keys
//   QUERIES   [rows / QUERY_GROUP][depth][QUERY_GROUP], for tiles [rows][depth]
enum class Rowwise { WEIGHTS, QUERIES };

constexpr int64_t CHUNK = 64;  // keys at once
constexpr int64_t QUERY_GROUP = 8;

template <typename T>
constexpr int64_t WEIGHT_CELLS = CHUNK / PER_CELL<T>;

// out [rows][width] = out * factor + a [rows][depth] b [depth][width], of a width that is a multiple of 16;
// without factors, a b. The first row is the first of a group. What a row becomes does not depend on the rows
// beside it: each sum runs along `depth`, from its first cell to its last.
template <typename T, Rowwise LAYOUT>
void multiply(int64_t rows, const Cell* a, int64_t group_stride, Cells b, int64_t depth, int64_t width,
              const float* factors, Floats out);

// The same for few rows, as in decoding: nothing is packed in memory. Keys are transposed, values
// interleaved, in registers, and used at once. Each sum runs over the same cells in the same order as in
// `multiply`, so it is the same to the last bit. What will be read next is fetched meanwhile: as many lines
// as are used, half of them with the keys.
constexpr int64_t FEW_ROWS = LANES == 16 ? 16 : 8;

// scores [rows][CHUNK] = queries [rows][num_cells] times CHUNK keys.
template <typename T>
void score_few(int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
               Upcoming& upcoming);

// out [rows][width] = out * factor + weights [rows][WEIGHT_CELLS] times values, of which there are `depth`
// cells. The width is a multiple of 16 cells.
template <typename T>
void mix_few(int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth, int64_t width,
             const float* factors, Floats out, Upcoming& upcoming);

// QUERIES_AT_ONCE rows of `num_cells` into as many groups as they are.
constexpr int64_t QUERIES_AT_ONCE = 16;
void group_queries(const uint8_t* const* rows, int64_t num_cells, Cell* groups);

// 16 keys of `num_cells` (a multiple of 16) into columns of `out`, whose rows are `stride` apart.
void pack_keys(const uint8_t* const* keys, int64_t num_cells, Cell* out, int64_t stride);

// One row of `width` cells.
template <typename T>
void pack_values(const uint8_t* const* values, int64_t width, Cell* out);
