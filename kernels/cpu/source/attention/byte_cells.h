// Converts 8-bit items of rows to cells of two bfloat16 by table look-ups in registers.
#pragma once

#include "attention_bytes.h"

#if HAS_BYTE_CELLS
#include <array>
#include <bit>
#include <type_traits>

#include "lanes.h"

namespace {

// The value of an item without its sign, like `from_int8` and `from_fp8`.
constexpr float size_of(Items kind, int item) {
  if (kind == Items::INT8) return float(item);
  const float of_exponent = std::bit_cast<float>(uint32_t(item < 8 ? 121 : 120 + item / 8) << 23);
  return of_exponent * (float(item % 8) / 8 + (item < 8 ? 0.0f : 1.0f));
}

// The lower or the upper bytes of the bfloat16 values of all items without signs.
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

// Converts words of four items to cells of items 0 and 2, and of items 1 and 3.
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

// Converts BYTE_COLUMNS columns of two rows to four vectors of cells.
template <Items KIND>
inline __attribute__((always_inline)) void load_cells_of(const uint8_t* const* rows, int64_t column,
                                                         const Widening<KIND>& widen, Words* cells) {
  const __m512i a = _mm512_loadu_si512(rows[0] + column), b = _mm512_loadu_si512(rows[1] + column);
  widen((Words)_mm512_unpacklo_epi16(a, b), cells[0], cells[1]);
  widen((Words)_mm512_unpackhi_epi16(a, b), cells[2], cells[3]);
}

// Calls call(integral_constant of the kind).
template <typename Call>
void with_kind(Items kind, Call call) {
  if (kind == Items::INT8) return call(std::integral_constant<Items, Items::INT8>());
  call(std::integral_constant<Items, Items::FP8>());
}

}  // namespace
#endif
