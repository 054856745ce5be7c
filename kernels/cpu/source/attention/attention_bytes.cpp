// Products of attention over 8-bit items; see attention_bytes.h.
#include "attention_bytes.h"

#if HAS_BYTE_CELLS
#include "attention_pack.h"
#include "attention_tiles.h"
#include "byte_cells.h"

namespace {

inline Lanes add_cells(Lanes sum, Cell a, Words b) {
  return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(Words{} + a), (__m512bh)b);
}

template <Items KIND, int ROWS>
void score_rows(Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
                Upcoming& upcoming) {
  constexpr int SIXTEENS = ROWS <= 4 ? 2 : 1;  // of keys at once: sums of few rows wait for each other
  const Widening<KIND> widen;
  for (int64_t key = 0; key < CHUNK; key += LANES * SIXTEENS) {
    Lanes sums[ROWS][SIXTEENS] = {};
    for (int64_t word = 0; word < num_cells / 2; word += COLUMNS) {
      upcoming.fetch(SIXTEENS * COLUMNS);
      Words columns[SIXTEENS][COLUMNS];
#pragma GCC unroll 2
      for (int s = 0; s < SIXTEENS; s++) load_columns(keys + key + s * LANES, word, columns[s]);
#pragma GCC unroll 8
      for (int i = 0; i < COLUMNS; i++)
#pragma GCC unroll 2
        for (int s = 0; s < SIXTEENS; s++) {
          Words even, odd;
          widen(columns[s][i], even, odd);
#pragma GCC unroll 8
          for (int r = 0; r < ROWS; r++) {
            const Cell* query = queries.cells + r * queries.stride + 2 * (word + i);
            sums[r][s] = add_cells(add_cells(sums[r][s], query[0], even), query[1], odd);
          }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int s = 0; s < SIXTEENS; s++)
        memcpy(scores.floats + r * scores.stride + key + s * LANES, &sums[r][s], sizeof(Lanes));
  }
}

// out[ROWS][64 BLOCKS] = out * factor + weights [ROWS][depth] times values from `column` on.
template <Items KIND, int ROWS, int BLOCKS>
void mix_columns(const Cell* weights, const uint8_t* const* values, int64_t column, int64_t depth,
                 const float* factors, Floats out, Upcoming& upcoming) {
  constexpr int VECTORS = 4 * BLOCKS;
  const Widening<KIND> widen;
  float* const first = out.floats + column;
  Lanes sums[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++) {
      memcpy(&sums[r][v], first + r * out.stride + v * LANES, sizeof(Lanes));
      sums[r][v] *= factors[r];
    }
  for (int64_t k = 0; k < depth; k++) {
    upcoming.fetch(2 * BLOCKS);
#pragma GCC unroll 2
    for (int block = 0; block < BLOCKS; block++) {
      Words cells[4];
      load_cells_of(values + 2 * k, column + block * BYTE_COLUMNS, widen, cells);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
          Lanes& sum = sums[r][4 * block + v];
          sum = add_cells(sum, weights[r * WEIGHT_CELLS<bf16> + k], cells[v]);
        }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++)
      memcpy(first + r * out.stride + v * LANES, &sums[r][v], sizeof(Lanes));
}

template <Items KIND, int ROWS>
void mix_rows(const Cell* weights, const uint8_t* const* values, int64_t depth, int64_t width,
              const float* factors, Floats out, Upcoming& upcoming) {
  constexpr int BLOCKS = ROWS <= 2 ? 2 : 1;
  int64_t column = 0;
  for (; column + BLOCKS * BYTE_COLUMNS <= width; column += BLOCKS * BYTE_COLUMNS)
    mix_columns<KIND, ROWS, BLOCKS>(weights, values, column, depth, factors, out, upcoming);
  if (column < width) mix_columns<KIND, ROWS, 1>(weights, values, column, depth, factors, out, upcoming);
}

constexpr int MIXED_ROWS = 4;  // at once, as many as have their sums in registers

}  // namespace

void score_few_bytes(Items kind, int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells,
                     Floats scores, Upcoming& upcoming) {
  if (uses_tiles()) return score_few_bytes_as_tiles(kind, rows, queries, keys, num_cells, scores, upcoming);
  with_kind(kind, [&]<Items KIND>(std::integral_constant<Items, KIND>) {
    with_rows<int(FEW_BYTE_ROWS)>(rows, [&]<int ROWS>(std::integral_constant<int, ROWS>) {
      score_rows<KIND, ROWS>(queries, keys, num_cells, scores, upcoming);
    });
  });
}

void mix_few_bytes(Items kind, int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth,
                   int64_t width, const float* factors, Floats out, Upcoming& upcoming) {
  if (uses_tiles())
    return mix_few_bytes_as_tiles(kind, rows, weights, values, depth, width, factors, out, upcoming);
  with_kind(kind, [&]<Items KIND>(std::integral_constant<Items, KIND>) {
    in_parts<MIXED_ROWS>(rows, [&]<int ROWS>(std::integral_constant<int, ROWS>, int64_t row) {
      mix_rows<KIND, ROWS>(weights + row * WEIGHT_CELLS<bf16>, values, depth, width, factors + row,
                           {out.floats + row * out.stride, out.stride}, upcoming);
    });
  });
}

void pack_key_bytes(Items kind, const uint8_t* const* keys, int64_t num_cells, Cell* out, int64_t stride) {
  with_kind(kind, [&]<Items KIND>(std::integral_constant<Items, KIND>) {
    const Widening<KIND> widen;
    for (int64_t word = 0; word < num_cells / 2; word += COLUMNS) {
      Words columns[COLUMNS];
      load_columns(keys, word, columns);
#pragma GCC unroll 8
      for (int i = 0; i < COLUMNS; i++) {
        Words even, odd;
        widen(columns[i], even, odd);
        store_cells(out + 2 * (word + i) * stride, even);
        store_cells(out + (2 * (word + i) + 1) * stride, odd);
      }
    }
  });
}

void pack_value_bytes(Items kind, const uint8_t* const* values, int64_t width, Cell* out) {
  with_kind(kind, [&]<Items KIND>(std::integral_constant<Items, KIND>) {
    const Widening<KIND> widen;
    for (int64_t column = 0; column < width; column += BYTE_COLUMNS) {
      Words cells[4];
      load_cells_of(values, column, widen, cells);
      for (int v = 0; v < 4; v++) store_cells(out + column + v * LANES, cells[v]);
    }
  });
}
#endif
