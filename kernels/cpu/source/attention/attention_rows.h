// Reads queries of a pass for the products of attention, and writes their results.
#pragma once

#include "attention_workspace.h"

namespace {

// A query padded with zeros, with its items in the order of the keys' items.
template <typename Problem, typename T>
const T* copy_query(const Problem& problem, int64_t token, int64_t head, T* query) {
  problem.load_query(token, head, query);
  std::fill(query + problem.key_width, query + problem.padded_key(), T{});
  for (int64_t item = 1; problem.has_shuffled_keys() && item < problem.padded_key(); item += SHUFFLED_ITEMS)
    std::swap(query[item], query[item + 1]);
  return query;
}

// Restores the order of 32 columns after `pack_values` and `mix_few`.
inline void unshuffle(f32x16& low, f32x16& high) {
  const f32x16 first =
      __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const f32x16 second =
      __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  low = first;
  high = second;
}

// Finishes columns after `pack_value_bytes` and `mix_few_bytes`, which change their order. -0 becomes 0, since the sign
// depends on whether sums of weight 0 were added before.
template <typename Problem, typename T>
void store_byte_columns(const Problem& problem, const float* values, float factor, T* out) {
  const int64_t width = problem.value_width;
  for (int64_t column = 0; column < width; column += BYTE_COLUMNS) {
    float part[BYTE_COLUMNS];
    for (int64_t i = 0; i < BYTE_COLUMNS; i++) part[i] = values[column + byte_place(i)] * factor + 0.0f;
    for (int64_t i = 0; i < BYTE_COLUMNS && column + i < width; i += 16)
      store_up_to(out + column + i, load(part + i), width - column - i);
  }
}

template <typename Problem, typename T>
void store_row(const Problem& problem, const float* values, float factor, T* out) {
  const int64_t width = problem.value_width;
  if (problem.is_bytes()) return store_byte_columns(problem, values, factor, out);
  for (int64_t column = 0; column < width; column += 16 * PER_CELL<T>) {
    f32x16 part[PER_CELL<T>];
    for (int i = 0; i < PER_CELL<T>; i++) part[i] = load(values + column + 16 * i) * splat(factor) + 0.0f;
    if constexpr (PER_CELL<T> == 2) unshuffle(part[0], part[1]);
    for (int64_t i = 0; i < PER_CELL<T> && column + 16 * i < width; i++) {
      const int64_t start = column + 16 * i, count = std::min<int64_t>(16, width - start);
      count == 16 ? store(out + start, part[i]) : store_part(out + start, part[i], count);
    }
  }
}

// Writes a row whose sums are complete.
template <typename Problem>
void store_out(const Problem& problem, const Tile& tile, int64_t row, const Sums& sums) {
  const int64_t head = tile.head(row), token = tile.first_token + tile.token(row);
  float total = sum(load(sums.totals(0))), shrink = 1;
  if (problem.has_sinks() && total > 0) {  // 0: no score was a number, and the row is not one either
    const float sink = problem.sink(head), top = std::max(sums.top(0), sink);
    shrink = powers_of_2(splat(sums.top(0) - top))[0];
    total = total * shrink + powers_of_2(splat(sink - top))[0];
  }
  store_row(problem, sums.values(0), shrink / total,
            problem.out + (token * problem.num_heads + head) * problem.value_width);
}

}  // namespace
