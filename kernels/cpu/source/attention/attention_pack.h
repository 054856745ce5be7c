// Packs keys and values of a chunk for the products of attention.
//
//   keys      rows [keys][cells]  ->  [cells][CHUNK]         transposed, LANES x LANES cells at a time
//   values    float32: rows as they are; bfloat16: two rows interleaved, a cell being both at a column
//
// Interleaving works within 16 bytes, so columns come out of order (`unshuffle` restores it).
#pragma once

#include "attention_products.h"
#include "lanes.h"

namespace {

// In each 16 bytes: a0 b0 a1 b1 (FROM = 0), or a2 b2 a3 b3.
template <int FROM>
inline Words zip(Words a, Words b) {
  return pick(a, b, [](int i) { return i / 4 * 4 + FROM + i % 4 / 2 + i % 2 * LANES; });
}

// In each 16 bytes: a0 a1 b0 b1 (FROM = 0), or a2 a3 b2 b3.
template <int FROM>
inline Words join(Words a, Words b) {
  return pick(a, b, [](int i) { return i / 4 * 4 + FROM + i % 2 + i % 4 / 2 * LANES; });
}

// By groups of 16 bytes: a0 a2 ... b0 b2 ... (FROM = 0), or a1 a3 ... b1 b3 ...
template <int FROM>
inline Words lanes(Words a, Words b) {
  constexpr int HALF = LANES / 2;
  return pick(a, b, [](int i) { return i % HALF / 4 * 8 + 4 * FROM + i % 4 + i / HALF * LANES; });
}

// Transposes four rows, 4 x 4 cells within each 16 bytes.
inline __attribute__((always_inline)) void transpose_fours(Words* row) {
  const Words a = zip<0>(row[0], row[1]), b = zip<2>(row[0], row[1]);
  const Words c = zip<0>(row[2], row[3]), d = zip<2>(row[2], row[3]);
  row[0] = join<0>(a, c), row[1] = join<2>(a, c);
  row[2] = join<0>(b, d), row[3] = join<2>(b, d);
}

inline Words load_cells(const void* p) {
  Words v;
  memcpy(&v, p, sizeof v);
  return v;
}

inline void store_cells(Cell* p, Words v) { memcpy(p, &v, sizeof v); }

// Transposes LANES rows of COLUMNS cells: 4 x 4 cells within 16 bytes, and then groups of 16 bytes as wholes. No step
// overwrites its inputs, which saves the copies that a general permutation would need. If half a row fills half a
// register, two of them share one, which saves a step.
constexpr int COLUMNS = LANES == 16 ? 8 : LANES;

inline __attribute__((always_inline)) void load_columns(const uint8_t* const* rows, int64_t column,
                                                        Words (&columns)[COLUMNS]) {
#if defined(__AVX512F__)
  typedef Cell Half __attribute__((vector_size(4 * COLUMNS)));
  const auto half = [&](int row) {
    Half v;
    memcpy(&v, rows[row] + column * int64_t(sizeof(Cell)), sizeof v);
    return v;
  };
#pragma GCC unroll 8
  for (int i = 0; i < COLUMNS; i++) {
    const int row = i / 4 * 8 + i % 4;
    const Half first = half(row), second = half(row + 4);
    columns[i] = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
#else
#pragma GCC unroll 8
  for (int i = 0; i < COLUMNS; i++) columns[i] = load_cells(reinterpret_cast<const Cell*>(rows[i]) + column);
#endif
#pragma GCC unroll 2
  for (int i = 0; i < COLUMNS; i += 4) transpose_fours(columns + i);
  if constexpr (COLUMNS == 8) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const Words a = columns[i], b = columns[i + 4];
      columns[i] = lanes<0>(a, b), columns[i + 4] = lanes<1>(a, b);
    }
  }
}

// Calls call(integral_constant of `rows`), where rows is 1 to MOST.
template <int MOST, typename Call>
void with_rows(int64_t rows, Call call) {
  if constexpr (MOST > 1) {
    if (rows < MOST) return with_rows<MOST - 1>(rows, call);
  }
  call(std::integral_constant<int, MOST>());
}

// Calls call(integral_constant of the number, first row) for parts of `rows` of nearly equal size, at most MOST.
template <int MOST, typename Call>
void in_parts(int64_t rows, Call call) {
  const int64_t num_parts = (rows + MOST - 1) / MOST;
  for (int64_t part = 0, row = 0, end; part < num_parts; part++, row = end) {
    end = rows * (part + 1) / num_parts;
    with_rows<MOST>(end - row, [&](auto count) { call(count, row); });
  }
}

// Packs VECTORS * LANES columns of as many rows as a cell has values: one row, or two.
template <typename T, int VECTORS>
inline __attribute__((always_inline)) void load_values(const uint8_t* const* rows, int64_t column,
                                                       Words (&cells)[VECTORS]) {
#pragma GCC unroll 16
  for (int v = 0; v < VECTORS; v += int(PER_CELL<T>)) {
    const int64_t byte = (column + v * LANES) * int64_t(sizeof(T));
    if constexpr (PER_CELL<T> == 1) {
      cells[v] = load_cells(rows[0] + byte);
    } else {
      Halves a, b;
      memcpy(&a, rows[0] + byte, sizeof a);
      memcpy(&b, rows[1] + byte, sizeof b);
      cells[v] = (Words)pick(a, b, [](int i) { return i / 8 * 8 + i % 8 / 2 + i % 2 * 2 * LANES; });
      cells[v + 1] = (Words)pick(a, b, [](int i) { return i / 8 * 8 + 4 + i % 8 / 2 + i % 2 * 2 * LANES; });
    }
  }
}

// The place of the first of those vectors; `column` is a multiple of LANES times the number of values in a cell. Pairs
// of bfloat16 are out of order as if each vector had 16 cells.
template <typename T>
constexpr int64_t place_of(int64_t column) {
  return PER_CELL<T> == 1 ? column : column / 32 * 32 + column % 32 / 2;
}

// The offset of another vector from the first; more than two begin at a multiple of 32 columns.
template <typename T>
constexpr int64_t vector_offset(int vector) {
  return PER_CELL<T> == 1 ? vector * LANES : place_of<T>(vector / 2 * 2 * LANES) + vector % 2 * 16;
}

}  // namespace
