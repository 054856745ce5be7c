// Products of attention by matrix tiles, and by vectors with the same order of sums; see attention_tiles.h.
#include "attention_tiles.h"

#include <algorithm>
#include <vector>

#include "attention_pack.h"
#include "byte_cells.h"
#include "denormals.h"

#if HAS_AMX
namespace {

constexpr int SCORED_ROWS = 8;  // at once: both sums of each are in registers

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Scales earlier sums by factors, with normal rounding, even if denormals count as zeros in the products that follow.
void shrink(int64_t rows, int64_t width, const float* factors, Floats out) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < width; column++) out.floats[row * out.stride + column] *= factors[row];
}

// Converts cells to floats [rows][num_cells][2], which a product reads from memory as it needs them.
void widen(int64_t rows, Cells from, int64_t num_cells, float* into) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < num_cells; i++) {
      const Cell cell = from.cells[row * from.stride + i], halves[2] = {cell << 16, cell & 0xFFFF0000u};
      memcpy(into + 2 * (row * num_cells + i), halves, sizeof halves);
    }
}

// Sums of ROWS rows and VECTORS vectors over up to TILE_CELLS cells.
template <int ROWS, int VECTORS>
struct PartSums {
  Lanes first[ROWS][VECTORS] = {}, second[ROWS][VECTORS] = {};

  // `a`: both halves of a cell of the first row; other rows are `stride` floats apart.
  __attribute__((always_inline)) void add(const float* a, int64_t stride, int vector, Words b) {
    const Lanes low = (Lanes)(b << 16), high = (Lanes)(b & 0xFFFF0000u);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      first[r][vector] = fused(Lanes{} + a[r * stride], low, first[r][vector]);
      second[r][vector] = fused(Lanes{} + a[r * stride + 1], high, second[r][vector]);
    }
  }
};

// Rows of bfloat16, in the cache or converted.
struct WideRows {
  static constexpr int VECTORS = 2, MIXED_ROWS = 4;  // of values, at once
  static constexpr int KEY_LINES = 16;               // that are read with TILE_CELLS of 16 keys

  // Calls use(i, 16 keys) for TILE_CELLS cells from `cell` on.
  template <typename Use>
  __attribute__((always_inline)) void keys(const uint8_t* const* rows, int64_t cell, Use use) const {
#pragma GCC unroll 2
    for (int begin = 0; begin < TILE_CELLS; begin += COLUMNS) {
      Words columns[COLUMNS];
      load_columns(rows, cell + begin, columns);
#pragma GCC unroll 8
      for (int i = 0; i < COLUMNS; i++) use(begin + i, columns[i]);
    }
  }

  __attribute__((always_inline)) void values(const uint8_t* const* rows, int64_t column, Words* cells) const {
    Words both[VECTORS];
    load_values<bf16, VECTORS>(rows, column, both);
    cells[0] = both[0], cells[1] = both[1];
  }

  static int64_t place(int64_t column, int vector) { return place_of<bf16>(column) + vector_offset<bf16>(vector); }
};

#if HAS_BYTE_CELLS
template <Items KIND>
struct ByteRows {
  static constexpr int VECTORS = 4, MIXED_ROWS = 2, KEY_LINES = 8;

  template <typename Use>
  __attribute__((always_inline)) void keys(const uint8_t* const* rows, int64_t cell, Use use) const {
    Words columns[COLUMNS];
    load_columns(rows, cell / 2, columns);
#pragma GCC unroll 8
    for (int i = 0; i < COLUMNS; i++) {
      Words even, odd;
      widen_(columns[i], even, odd);
      use(2 * i, even);
      use(2 * i + 1, odd);
    }
  }

  __attribute__((always_inline)) void values(const uint8_t* const* rows, int64_t column, Words* cells) const {
    load_cells_of(rows, column, widen_, cells);
  }

  static int64_t place(int64_t column, int vector) { return column + vector * LANES; }

 private:
  const Widening<KIND> widen_;
};
#endif

// scores[ROWS][CHUNK] = queries [ROWS][num_cells][2] times CHUNK keys.
template <int ROWS, typename KeyRows>
__attribute__((noinline)) void score_rows(const float* queries, const uint8_t* const* keys, int64_t num_cells,
                                          Floats scores, Upcoming& upcoming) {
  const KeyRows source;
  for (int64_t key = 0; key < CHUNK; key += LANES) {
    Lanes sums[ROWS] = {};
    for (int64_t cell = 0; cell < num_cells; cell += TILE_CELLS) {
      upcoming.fetch(KeyRows::KEY_LINES);
      PartSums<ROWS, 1> part;
      source.keys(keys + key, cell, [&](int i, Words column) __attribute__((always_inline)) {
        part.add(queries + 2 * (cell + i), 2 * num_cells, 0, column);
      });
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) sums[r] += part.first[r][0] + part.second[r][0];
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) memcpy(scores.floats + r * scores.stride + key, &sums[r], sizeof(Lanes));
  }
}

// out [ROWS][width] += weights [ROWS][WEIGHT_CELLS][2] times values.
template <int ROWS, typename ValueRows>
__attribute__((noinline)) void mix_rows(const float* weights, const uint8_t* const* values, int64_t depth,
                                        int64_t width, Floats out, Upcoming& upcoming) {
  constexpr int VECTORS = ValueRows::VECTORS;
  const ValueRows source;
  for (int64_t column = 0; column < width; column += VECTORS * LANES)
    for (int64_t begin = 0; begin < depth; begin += TILE_CELLS) {
      PartSums<ROWS, VECTORS> part;
      for (int64_t k = begin; k < std::min(begin + TILE_CELLS, depth); k++) {
        upcoming.fetch(2);
        Words cells[VECTORS];
        source.values(values + 2 * k, column, cells);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) part.add(weights + 2 * k, 2 * WEIGHT_CELLS<bf16>, v, cells[v]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
          float* const place = out.floats + r * out.stride + ValueRows::place(column, v);
          Lanes sum;
          memcpy(&sum, place, sizeof sum);
          sum += part.first[r][v] + part.second[r][v];
          memcpy(place, &sum, sizeof sum);
        }
    }
}

template <typename KeyRows>
void score_few_of(int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
                  Upcoming& upcoming) {
  static thread_local std::vector<float> wide;
  wide.resize(std::max(wide.size(), size_t(FEW_ROWS * num_cells * 2)));
  widen(rows, queries, num_cells, wide.data());
  const DenormalsAsZeros denormals_as_zeros;
  in_parts<SCORED_ROWS>(rows, [&]<int ROWS>(std::integral_constant<int, ROWS>, int64_t row) {
    score_rows<ROWS, KeyRows>(wide.data() + row * num_cells * 2, keys, num_cells,
                              {scores.floats + row * scores.stride, scores.stride}, upcoming);
  });
}

template <typename ValueRows>
void mix_few_of(int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth, int64_t width,
                const float* factors, Floats out, Upcoming& upcoming) {
  constexpr int64_t CELLS = WEIGHT_CELLS<bf16>;
  alignas(64) float wide[FEW_ROWS * CELLS * 2];
  shrink(rows, width, factors, out);
  widen(rows, {weights, CELLS}, CELLS, wide);
  const DenormalsAsZeros denormals_as_zeros;
  in_parts<ValueRows::MIXED_ROWS>(rows, [&]<int ROWS>(std::integral_constant<int, ROWS>, int64_t row) {
    mix_rows<ROWS, ValueRows>(wide + row * CELLS * 2, values, depth, width,
                              {out.floats + row * out.stride, out.stride}, upcoming);
  });
}

}  // namespace

void multiply_by_tiles(int64_t rows, Cells a, Cells b, int64_t depth, int64_t width, const float* factors,
                       Floats out) {
  constexpr int64_t CELL = sizeof(Cell);
  if (factors) shrink(rows, width, factors, out);
  for (int64_t column = 0; column < width; column += TILE_COLUMNS)
    for (int64_t row = 0; row < rows; row += AMX_ROWS) {
      const TileFactors product{a.cells + row * a.stride, a.stride * CELL, b.cells + column,
                                round_up(depth, TILE_CELLS), b.stride * CELL};
      multiply_bf16_by_tiles(std::min(rows - row, AMX_ROWS), product, factors != nullptr,
                             out.floats + row * out.stride + column, out.stride);
    }
}

void score_few_as_tiles(int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
                        Upcoming& upcoming) {
  score_few_of<WideRows>(rows, queries, keys, num_cells, scores, upcoming);
}

void mix_few_as_tiles(int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth, int64_t width,
                      const float* factors, Floats out, Upcoming& upcoming) {
  mix_few_of<WideRows>(rows, weights, values, depth, width, factors, out, upcoming);
}

#if HAS_BYTE_CELLS
void score_few_bytes_as_tiles(Items kind, int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells,
                              Floats scores, Upcoming& upcoming) {
  with_kind(kind, [&]<Items KIND>(std::integral_constant<Items, KIND>) {
    score_few_of<ByteRows<KIND>>(rows, queries, keys, num_cells, scores, upcoming);
  });
}

void mix_few_bytes_as_tiles(Items kind, int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth,
                            int64_t width, const float* factors, Floats out, Upcoming& upcoming) {
  with_kind(kind, [&]<Items KIND>(std::integral_constant<Items, KIND>) {
    mix_few_of<ByteRows<KIND>>(rows, weights, values, depth, width, factors, out, upcoming);
  });
}
#endif

#else

void multiply_by_tiles(int64_t, Cells, Cells, int64_t, int64_t, const float*, Floats) {}
void score_few_as_tiles(int64_t, Cells, const uint8_t* const*, int64_t, Floats, Upcoming&) {}
void mix_few_as_tiles(int64_t, const Cell*, const uint8_t* const*, int64_t, int64_t, const float*, Floats, Upcoming&) {}

#endif
