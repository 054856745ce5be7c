// Products of attention over 8-bit items; see attention_bytes.h.
#include "attention_bytes.h"

#if HAS_BYTE_CELLS
#include <array>
#include <bit>

#include "attention_pack.h"

namespace {

// What an item without its sign stands for; as `from_int8` and `from_fp8`.
constexpr float size_of(Items kind, int item) {
  if (kind == Items::INT8) return float(item);
  const float of_exponent = std::bit_cast<float>(uint32_t(item < 8 ? 121 : 120 + item / 8) << 23);
  return of_exponent * (float(item % 8) / 8 + (item < 8 ? 0.0f : 1.0f));
}

// The lower or the upper bytes of all those in bfloat16.
constexpr std::array<uint8_t, 128> bytes_of(Items kind, int shift) {
  std::array<uint8_t, 128> bytes{};
  for (int item = 0; item < 128; item++)
    bytes[size_t(item)] = uint8_t(std::bit_cast<uint32_t>(size_of(kind, item)) >> (16 + shift));
  return bytes;
}

template <Items KIND>
alignas(64) constexpr std::array<uint8_t, 128> LOWER = bytes_of(KIND, 0);
template <Items KIND>
alignas(64) constexpr std::array<uint8_t, 128> UPPER = bytes_of(KIND, 8);

// Words of four items become cells: of items 0 and 2, and of items 1 and 3.
template <Items KIND>
class Widening {
 public:
  __attribute__((always_inline)) void operator()(Words items, Words& even, Words& odd) const {
    const __m512i v = (__m512i)items, size = KIND == Items::INT8 ? _mm512_abs_epi8(v) : v;
    const __m512i low = _mm512_permutex2var_epi8(lower_[0], size, lower_[1]);
    const __m512i unsigned_high = _mm512_permutex2var_epi8(upper_[0], size, upper_[1]);
    const __m512i high = _mm512_ternarylogic_epi32(unsigned_high, v, signs_, A_OR_B_AND_C);
    even = (Words)_mm512_ternarylogic_epi32(lowest_, low, _mm512_slli_epi16(high, 8), A_CHOOSES);
    odd = (Words)_mm512_ternarylogic_epi32(lowest_, _mm512_srli_epi16(low, 8), high, A_CHOOSES);
  }

 private:
  static constexpr int A_OR_B_AND_C = 0xF8, A_CHOOSES = 0xCA;

  static __m512i half(const std::array<uint8_t, 128>& bytes, int which) {
    return _mm512_load_si512(bytes.data() + 64 * which);
  }

  const __m512i lower_[2] = {half(LOWER<KIND>, 0), half(LOWER<KIND>, 1)};
  const __m512i upper_[2] = {half(UPPER<KIND>, 0), half(UPPER<KIND>, 1)};
  const __m512i signs_ = _mm512_set1_epi8(int8_t(0x80)), lowest_ = _mm512_set1_epi16(0x00FF);
};

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

// BYTE_COLUMNS of two rows: four vectors of cells.
template <Items KIND>
inline __attribute__((always_inline)) void load_cells_of(const uint8_t* const* rows, int64_t column,
                                                         const Widening<KIND>& widen, Words* cells) {
  const __m512i a = _mm512_loadu_si512(rows[0] + column), b = _mm512_loadu_si512(rows[1] + column);
  widen((Words)_mm512_unpacklo_epi16(a, b), cells[0], cells[1]);
  widen((Words)_mm512_unpackhi_epi16(a, b), cells[2], cells[3]);
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

// call(an integral_constant of the kind).
template <typename Call>
void with_kind(Items kind, Call call) {
  if (kind == Items::INT8) return call(std::integral_constant<Items, Items::INT8>());
  call(std::integral_constant<Items, Items::FP8>());
}

}  // namespace

void score_few_bytes(Items kind, int64_t rows, Cells queries, const uint8_t* const* keys, int64_t num_cells,
                     Floats scores, Upcoming& upcoming) {
  with_kind(kind, [&]<Items KIND>(std::integral_constant<Items, KIND>) {
    with_rows<int(FEW_BYTE_ROWS)>(rows, [&]<int ROWS>(std::integral_constant<int, ROWS>) {
      score_rows<KIND, ROWS>(queries, keys, num_cells, scores, upcoming);
    });
  });
}

void mix_few_bytes(Items kind, int64_t rows, const Cell* weights, const uint8_t* const* values, int64_t depth,
                   int64_t width, const float* factors, Floats out, Upcoming& upcoming) {
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
