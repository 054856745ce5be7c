// The products of attention, shared by all kinds of it: compiled once, for each small number of rows and for each
// layout of many rows.
#include <algorithm>

#include "attention_pack.h"
#include "attention_products.h"
#include "attention_tiles.h"
#include "neon.h"

namespace {

inline Words broadcast(Cell cell) { return Words{} + cell; }

inline Lanes load_lanes(const float* p) {
  Lanes v;
  memcpy(&v, p, sizeof v);
  return v;
}

inline void store_lanes(float* p, Lanes v) { memcpy(p, &v, sizeof v); }

// sum + a * b over the values of a cell, always in the same order.
template <typename T>
inline Lanes add_product(Lanes sum, Words a, Words b) {
  if constexpr (PER_CELL<T> == 1) {
    return fused((Lanes)a, (Lanes)b, sum);
  } else {
#if defined(__AVX512BF16__)
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#elif HAS_NEON_MATRICES
    return (Lanes)neon::dot_bf16((float32x4_t)sum, (uint8x16_t)a, (uint8x16_t)b);
#else
    sum = fused((Lanes)(a & 0xFFFF0000u), (Lanes)(b & 0xFFFF0000u), sum);
    return fused((Lanes)(a << 16), (Lanes)(b << 16), sum);
#endif
  }
}

// Numbers of rows and vectors at a time whose sums stay in registers.
constexpr int TILE_ROWS = LANES == 16 ? 8 : 4;
constexpr int SCORED_ROWS = 8;
constexpr int tile_vectors(int rows) { return LANES == 4 || rows < TILE_ROWS ? 4 : 2; }
constexpr int mix_vectors(int rows) {
  if (LANES == 16) return rows <= 2 ? 8 : rows <= 4 ? 4 : 2;
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
}

// out[ROWS][LANES VECTORS] = out * factor + a [ROWS][depth] b [depth][LANES VECTORS]; without factors, a b. The layout
// of `a` is a template parameter because there are not enough registers for 8 addresses.
template <typename T, Rowwise LAYOUT, int ROWS, int VECTORS>
__attribute__((noinline)) void multiply_tile(const Cell* a, Cells b, int64_t depth, const float* factors,
                                             Floats out) {
  constexpr bool IS_GROUPED = LAYOUT == Rowwise::QUERIES;
  constexpr int64_t ROW_STRIDE = IS_GROUPED ? 1 : WEIGHT_CELLS<T>, STEP = IS_GROUPED ? QUERY_GROUP : 1;
  Lanes sums[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++)
      sums[r][v] = factors ? load_lanes(out.floats + r * out.stride + LANES * v) * factors[r] : Lanes{};
  for (int64_t k = 0; k < depth; k++) {
    Words column[VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++) column[v] = load_cells(b.cells + k * b.stride + LANES * v);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      const Words cell = broadcast(a[r * ROW_STRIDE + k * STEP]);
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; v++) sums[r][v] = add_product<T>(sums[r][v], cell, column[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++) store_lanes(out.floats + r * out.stride + LANES * v, sums[r][v]);
}

template <typename T, Rowwise LAYOUT, int ROWS>
void multiply_rows(const Cell* a, Cells b, int64_t depth, int64_t width, const float* factors, Floats out) {
  constexpr int WIDE = tile_vectors(ROWS), NARROW = 16 / LANES;
  int64_t column = 0;
  for (; column + LANES * WIDE <= width; column += LANES * WIDE)
    multiply_tile<T, LAYOUT, ROWS, WIDE>(a, {b.cells + column, b.stride}, depth, factors,
                                         {out.floats + column, out.stride});
  for (; column < width; column += LANES * NARROW)
    multiply_tile<T, LAYOUT, ROWS, NARROW>(a, {b.cells + column, b.stride}, depth, factors,
                                           {out.floats + column, out.stride});
}

#if HAS_NEON_MATRICES
// Like `multiply_rows` for bfloat16, by 2 x 2 sums.
template <Rowwise LAYOUT, int ROWS>
__attribute__((noinline)) void multiply_pairs(const Cell* a, Cells b, int64_t depth, int64_t width,
                                              const float* factors, Floats out) {
  constexpr int VECTORS = ROWS == 8 ? 2 : 4;
  using Sums = neon::PairSums<float32x4_t, ROWS, VECTORS>;
  for (int64_t column = 0; column < width; column += VECTORS * LANES) {
    const Cell* const cells = b.cells + column;
    float* const floats = out.floats + column;
    Sums sums;
    if (factors)
      neon::unrolled<Sums::PAIRS>([&](auto pair) {
        neon::unrolled<VECTORS>([&](auto v) {
          const float* first = floats + 2 * pair * out.stride + v * LANES;
          sums.begin(pair, v, vld1q_f32(first) * factors[2 * pair],
                     vld1q_f32(first + out.stride) * factors[2 * pair + 1]);
        });
      });
    const auto add = [&](int64_t k, auto has_second) {
      int8x16_t x[Sums::PAIRS];
      neon::unrolled<Sums::PAIRS>([&](auto pair) {
        if constexpr (LAYOUT == Rowwise::QUERIES) {
          const Cell* both = a + k * QUERY_GROUP + 2 * pair;
          const uint32x2_t first = vld1_u32(both), second = has_second ? vld1_u32(both + QUERY_GROUP) : uint32x2_t{};
          x[pair] = vreinterpretq_s8_u32(vcombine_u32(vzip1_u32(first, second), vzip2_u32(first, second)));
        } else {
          const Cell* own = a + 2 * pair * WEIGHT_CELLS<bf16> + k;
          const auto two = [&](const Cell* p) {
            return has_second ? vld1_u32(p) : vset_lane_u32(*p, uint32x2_t{}, 0);
          };
          x[pair] = vreinterpretq_s8_u32(vcombine_u32(two(own), two(own + WEIGHT_CELLS<bf16>)));
        }
      });
      sums.add(x, [&](int behind, int v) {
        if (!has_second && behind) return neon::no_weights();
        return neon::load16(cells + (k + behind) * b.stride + v * LANES);
      });
    };
    int64_t k = 0;
    for (; k + 2 <= depth; k += 2) add(k, std::true_type());
    if (k < depth) add(k, std::false_type());
    neon::unrolled<ROWS>([&](auto row) {
      neon::unrolled<VECTORS>([&](auto v) { vst1q_f32(floats + row * out.stride + v * LANES, sums.of(row, v)); });
    });
  }
}
#endif

// scores[ROWS][CHUNK] = queries [ROWS][num_cells] times CHUNK keys.
template <typename T, int ROWS>
void score_rows(Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
                Upcoming& upcoming) {
  // With few rows, sums of several keys are computed at a time to hide the latency of additions.
  constexpr int SQUARES = ROWS <= (LANES == 16 ? 4 : 2) ? 2 : 1, AT_ONCE = LANES == 16 ? SQUARES : 1;
  for (int64_t key = 0; key < CHUNK; key += LANES * SQUARES) {
    Lanes sums[ROWS][SQUARES] = {};
    for (int64_t column = 0; column < num_cells; column += COLUMNS) {
      upcoming.fetch(SQUARES * COLUMNS * LANES / 16);
#pragma GCC unroll 2
      for (int first = 0; first < SQUARES; first += AT_ONCE) {
        Words columns[AT_ONCE][COLUMNS];
#pragma GCC unroll 2
        for (int s = 0; s < AT_ONCE; s++) load_columns(keys + key + (first + s) * LANES, column, columns[s]);
#pragma GCC unroll 8
        for (int i = 0; i < COLUMNS; i++)
#pragma GCC unroll 2
          for (int s = 0; s < AT_ONCE; s++)
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
              const Words cell = broadcast(queries.cells[r * queries.stride + column + i]);
              sums[r][first + s] = add_product<T>(sums[r][first + s], cell, columns[s][i]);
            }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int s = 0; s < SQUARES; s++)
        store_lanes(scores.floats + r * scores.stride + key + s * LANES, sums[r][s]);
  }
}

// out[ROWS][LANES VECTORS] = out * factor + weights [ROWS][depth] times values from `column` on.
template <typename T, int ROWS, int VECTORS>
void mix_columns(const Cell* weights, const uint8_t* const* values, int64_t column, int64_t depth,
                 const float* factors, Floats out, Upcoming& upcoming) {
  float* const first = out.floats + place_of<T>(column);
  Lanes sums[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++)
      sums[r][v] = load_lanes(first + r * out.stride + vector_offset<T>(v)) * factors[r];
  for (int64_t k = 0; k < depth; k++) {
    upcoming.fetch(VECTORS * LANES >= 16 ? VECTORS * LANES / 16 : 1);
    Words cells[VECTORS];
    load_values<T, VECTORS>(values + PER_CELL<T> * k, column, cells);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const Words weight = broadcast(weights[r * WEIGHT_CELLS<T> + k]);
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; v++) sums[r][v] = add_product<T>(sums[r][v], weight, cells[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++)
      store_lanes(first + r * out.stride + vector_offset<T>(v), sums[r][v]);
}

// The same for all columns.
template <typename T, int ROWS>
void mix_rows(const Cell* weights, const uint8_t* const* values, int64_t depth, int64_t width,
              const float* factors, Floats out, Upcoming& upcoming) {
  constexpr int WIDE = mix_vectors(ROWS), NARROW = LANES == 16 ? int(PER_CELL<T>) : 2;
  int64_t column = 0;
  for (; column + LANES * WIDE <= width; column += LANES * WIDE)
    mix_columns<T, ROWS, WIDE>(weights, values, column, depth, factors, out, upcoming);
  for (; column < width; column += LANES * NARROW)
    mix_columns<T, ROWS, NARROW>(weights, values, column, depth, factors, out, upcoming);
}

}  // namespace

template <typename T, Rowwise LAYOUT>
void multiply(int64_t rows, const Cell* a, int64_t group_stride, Cells b, int64_t depth, int64_t width,
              const float* factors, Floats out) {
  if (attends_by_tiles<T>())
    return multiply_by_tiles(rows, {a, group_stride / QUERY_GROUP}, b, depth, width, factors, out);
  for (int64_t row = 0, done; row < rows; row += done) {
    const int64_t left = rows - row;
    const Cell* first = a + row / QUERY_GROUP * group_stride;
    first += row % QUERY_GROUP * (LAYOUT == Rowwise::QUERIES ? 1 : WEIGHT_CELLS<T>);
    const float* own = factors ? factors + row : nullptr;
    const Floats into{out.floats + row * out.stride, out.stride};
#if HAS_NEON_MATRICES
    if constexpr (sizeof(T) == 2) {
      done = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      switch (done) {
        case 8: multiply_pairs<LAYOUT, 8>(first, b, depth, width, own, into); continue;
        case 4: multiply_pairs<LAYOUT, 4>(first, b, depth, width, own, into); continue;
        case 2: multiply_pairs<LAYOUT, 2>(first, b, depth, width, own, into); continue;
      }
    }
#endif
    done = left >= TILE_ROWS ? TILE_ROWS : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    switch (done) {
      case TILE_ROWS: multiply_rows<T, LAYOUT, TILE_ROWS>(first, b, depth, width, own, into); break;
#if defined(__AVX512F__)
      case 4: multiply_rows<T, LAYOUT, 4>(first, b, depth, width, own, into); break;
#endif
      case 2: multiply_rows<T, LAYOUT, 2>(first, b, depth, width, own, into); break;
      default: multiply_rows<T, LAYOUT, 1>(first, b, depth, width, own, into);
    }
  }
}

template <typename T>
void score_few(int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells, Floats scores,
               Upcoming& upcoming) {
  if (attends_by_tiles<T>()) return score_few_as_tiles(rows, queries, keys, num_cells, scores, upcoming);
  in_parts<SCORED_ROWS>(rows, [&]<int ROWS>(std::integral_constant<int, ROWS>, int64_t row) {
    score_rows<T, ROWS>({queries.cells + row * queries.stride, queries.stride}, keys, num_cells,
                        {scores.floats + row * scores.stride, scores.stride}, upcoming);
  });
}

template <typename T>
void mix_few(int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth, int64_t width,
             const float* factors, Floats out, Upcoming& upcoming) {
  if (attends_by_tiles<T>()) return mix_few_as_tiles(rows, weights, values, depth, width, factors, out, upcoming);
  in_parts<TILE_ROWS>(rows, [&]<int ROWS>(std::integral_constant<int, ROWS>, int64_t row) {
    mix_rows<T, ROWS>(weights + row * WEIGHT_CELLS<T>, values, depth, width, factors + row,
                      {out.floats + row * out.stride, out.stride}, upcoming);
  });
}

void group_queries(const uint8_t* const* rows, int64_t num_cells, Cell* groups) {
  constexpr int64_t TOGETHER = std::min<int64_t>(LANES, QUERY_GROUP);
  for (int64_t row = 0; row < QUERIES_AT_ONCE; row += LANES)
    for (int64_t column = 0; column < num_cells; column += COLUMNS) {
      Words columns[COLUMNS];
      load_columns(rows + row, column, columns);
      for (int i = 0; i < COLUMNS; i++)
        for (int64_t part = row; part < row + LANES; part += TOGETHER) {
          Cell* group = groups + part / QUERY_GROUP * QUERY_GROUP * num_cells + part % QUERY_GROUP;
          memcpy(group + (column + i) * QUERY_GROUP, reinterpret_cast<const Cell*>(columns + i) + (part - row),
                 TOGETHER * sizeof(Cell));
        }
    }
}

void pack_keys(const uint8_t* const* keys, int64_t num_cells, Cell* out, int64_t stride) {
  for (int64_t key = 0; key < 16; key += LANES)
    for (int64_t column = 0; column < num_cells; column += COLUMNS) {
      Words columns[COLUMNS];
      load_columns(keys + key, column, columns);
#pragma GCC unroll 8
      for (int i = 0; i < COLUMNS; i++) store_cells(out + (column + i) * stride + key, columns[i]);
    }
}

template <typename T>
void pack_values(const uint8_t* const* values, int64_t width, Cell* out) {
  constexpr int VECTORS = int(PER_CELL<T>);
  for (int64_t column = 0; column < width; column += LANES * VECTORS) {
    Words cells[VECTORS];
    load_values<T, VECTORS>(values, column, cells);
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) store_cells(out + place_of<T>(column) + vector_offset<T>(v), cells[v]);
  }
}

template void multiply<float, Rowwise::QUERIES>(int64_t, const Cell*, int64_t, Cells, int64_t, int64_t,
                                                const float*, Floats);
template void multiply<float, Rowwise::WEIGHTS>(int64_t, const Cell*, int64_t, Cells, int64_t, int64_t,
                                                const float*, Floats);
template void score_few<float>(int64_t, Cells, const uint8_t* const*, int64_t, Floats, Upcoming&);
template void mix_few<float>(int64_t, const Cell*, const uint8_t* const*, int64_t, int64_t, const float*,
                             Floats, Upcoming&);
template void pack_values<float>(const uint8_t* const*, int64_t, Cell*);

template void multiply<bf16, Rowwise::QUERIES>(int64_t, const Cell*, int64_t, Cells, int64_t, int64_t,
                                               const float*, Floats);
template void multiply<bf16, Rowwise::WEIGHTS>(int64_t, const Cell*, int64_t, Cells, int64_t, int64_t,
                                               const float*, Floats);
template void score_few<bf16>(int64_t, Cells, const uint8_t* const*, int64_t, Floats, Upcoming&);
template void mix_few<bf16>(int64_t, const Cell*, const uint8_t* const*, int64_t, int64_t, const float*,
                            Floats, Upcoming&);
template void pack_values<bf16>(const uint8_t* const*, int64_t, Cell*);
