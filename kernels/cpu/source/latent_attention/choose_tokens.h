// The scores of an index, and the choice of the best; see kernels/latent_attention/choose_tokens.py.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>

#include "operator.h"
#include "rows.h"

namespace {

constexpr int64_t KEYS_AT_ONCE = 8;  // each with sums of its own, so that additions need not wait
constexpr int64_t HEADS_AT_ONCE = 16;

struct IndexShape {
  int64_t num_heads, width, block_size;
  float key_scale, head_scale;

  int64_t lanes() const { return (num_heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE * HEADS_AT_ONCE; }
};

// One query in the layout of the product: heads are adjacent, and padded with zeros.
struct IndexQuery {
  float* items;    // [D][lanes]
  float* weights;  // [lanes]

  static size_t floats(const IndexShape& shape) { return size_t((shape.width + 1) * shape.lanes()); }

  IndexQuery(float* memory, const IndexShape& shape)
      : items(memory), weights(memory + shape.width * shape.lanes()) {}

  template <typename T>
  void load(const T* q, const float* w, const IndexShape& shape) {
    const int64_t lanes = shape.lanes();
    std::fill(items, items + floats(shape), 0.0f);
    for (int64_t head = 0; head < shape.num_heads; head++) {
      for (int64_t d = 0; d < shape.width; d++) items[d * lanes + head] = to_float(q[head * shape.width + d]);
      weights[head] = w[head] * shape.head_scale;
    }
  }
};

// sum over heads of w_h relu(q_h . k) for a few keys, each with the same order of sums; -inf if a product is NaN.
static inline void score_keys(const IndexQuery& query, const float* keys, const IndexShape& shape, float* scores) {
  const int64_t lanes = shape.lanes(), width = shape.width;
  f32x16 mixed[KEYS_AT_ONCE] = {};
  for (int64_t first = 0; first < lanes; first += HEADS_AT_ONCE) {
    f32x16 products[KEYS_AT_ONCE] = {};
    for (int64_t d = 0; d < width; d++) {
      const f32x16 q = load(query.items + d * lanes + first);
      for (int64_t key = 0; key < KEYS_AT_ONCE; key++)
        products[key] = fma(q, splat(keys[key * width + d]), products[key]);
    }
    const f32x16 weights = load(query.weights + first);
    for (int64_t key = 0; key < KEYS_AT_ONCE; key++) {
      const f32x16 scaled = products[key] * splat(shape.key_scale);
      mixed[key] = fma(weights, scaled <= 0 ? f32x16{} : scaled, mixed[key]);
    }
  }
  for (int64_t key = 0; key < KEYS_AT_ONCE; key++) {
    const float score = sum(mixed[key]);
    scores[key] = score == score ? score : -std::numeric_limits<float>::infinity();
  }
}

// Scores of the keys [first, end) of one request. `room`: working memory for KEYS_AT_ONCE keys.
template <typename T>
void score_run(const IndexQuery& query, const T* arena, const int64_t* table, int64_t first, int64_t end,
               const IndexShape& shape, float* room, float* scores) {
  const int64_t width = shape.width, size = shape.block_size;
  for (int64_t from = first; from < end; from += KEYS_AT_ONCE) {
    const int64_t count = std::min(KEYS_AT_ONCE, end - from);
    for (int64_t key = 0; key < count; key++) {
      const int64_t position = from + key;
      const T* row = arena + (table[position / size] * size + position % size) * width;
      for_each_part(width, [&](int64_t d, int64_t items) {
        store_first(room + key * width + d, load_first(row + d, items), items);
      });
    }
    float found[KEYS_AT_ONCE];
    score_keys(query, room, shape, found);
    std::copy(found, found + count, scores + from);
  }
}

// The ascending indices of the `wanted` highest of `count` scores; ties go to the lower index. `room`: working memory
// for all scores.
template <typename Choose>
void choose_best(const float* scores, int64_t count, int64_t wanted, float* room, Choose choose) {
  std::copy(scores, scores + count, room);
  std::nth_element(room, room + wanted - 1, room + count, std::greater<float>());
  const float least = room[wanted - 1];
  int64_t equals = wanted - std::count_if(room, room + wanted, [&](float score) { return score > least; });
  for (int64_t place = 0, chosen = 0; chosen < wanted; place++) {
    if (scores[place] < least || (scores[place] == least && equals-- <= 0)) continue;
    choose(chosen++, place);
  }
}

}  // namespace
