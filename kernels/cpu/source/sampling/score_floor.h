// The least score that top-k and top-p keep, found without sorting; see kernels/sampling/token_filter.py.
//
//     bisection of the score range --> few scores between two limits --> one of those
//
// Weights are summed from the best score on, up to a target: each weight is 1 for top-k, and e^score for top-p.
#pragma once

#include <algorithm>
#include <limits>

#include "functions.h"
#include "operator.h"

constexpr float INFINITE = std::numeric_limits<float>::infinity();

typedef double f64x8 __attribute__((vector_size(64)));

// Bit i is set if the i-th of 16 is at least `limit`.
static inline uint32_t at_least(f32x16 v, f32x16 limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, (__m512)limit, _CMP_GE_OQ);
#else
  const i32x16 is_so = v >= limit;
  uint32_t bits = 0;
  for (int i = 0; i < 16; i++) bits |= uint32_t(is_so[i] & 1) << i;
  return bits;
#endif
}

// A sum of floats in double, so that the smallest differences count.
struct Sum {
  f64x8 low{}, high{};

  void add(f32x16 v) {
    low += __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), f64x8);
    high += __builtin_convertvector(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15), f64x8);
  }

  double value() const {
    double sum = 0;
    for (int i = 0; i < 8; i++) sum += low[i] + high[i];
    return sum;
  }
};

// Scores relative to the best one, which is 0: -infinity is masked. Padded to a multiple of 16.
struct Scores {
  const float* values;
  int64_t count;
};

struct ByCount {
  f32x16 operator()(int64_t) const { return splat(1); }
};

struct ByMass {
  const float* weights;  // e^score
  f32x16 operator()(int64_t i) const { return load(weights + i); }
};

struct Weighed {
  float score, weight;
};

struct WeighedList {
  Weighed* items;
  int64_t count;
};

// The number and the weight of scores of at least `limit`.
struct Share {
  float limit;
  int64_t count;
  double weight;
};

template <typename Weigh>
Share share_from(Scores scores, Weigh weigh, float limit) {
  Sum sum;
  int64_t count = 0;
  for (int64_t i = 0; i < scores.count; i += 16) {
    const f32x16 v = load(scores.values + i);
    count += __builtin_popcount(at_least(v, splat(limit)));
    sum.add(v >= limit ? weigh(i) : f32x16{});
  }
  return {limit, count, sum.value()};
}

template <typename Weigh>
WeighedList list_between(Scores scores, Weigh weigh, float low, float high, Weighed* items) {
  int64_t count = 0;
  for (int64_t i = 0; i < scores.count; i += 16) {
    const f32x16 v = load(scores.values + i);
    uint32_t bits = at_least(v, splat(low)) & ~at_least(v, splat(high));
    if (!bits) continue;
    const f32x16 weights = weigh(i);
    for (; bits; bits &= bits - 1) {
      const int lane = __builtin_ctz(bits);
      items[count++] = {v[lane], weights[lane]};
    }
  }
  return {items, count};
}

static inline void sort_best_first(WeighedList list) {
  std::sort(list.items, list.items + list.count,
            [](const Weighed& a, const Weighed& b) { return a.score > b.score; });
}

// The score in a list at which the weights, added to `before` from the best score on, reach `target`; the least score
// if they never do. Only the part of a range that contains it is searched again.
static inline float place_in(WeighedList list, double before, double target) {
  constexpr int BINS = 256;
  constexpr int64_t FEW = 64;
  while (list.count > FEW) {
    float low = list.items[0].score, high = low;
    for (int64_t i = 1; i < list.count; i++) {
      low = std::min(low, list.items[i].score);
      high = std::max(high, list.items[i].score);
    }
    if (low == high) return low;
    const float scale = std::min((BINS - 1) / (high - low), std::numeric_limits<float>::max());
    const auto bin_of = [=](float score) { return std::min(int((high - score) * scale), BINS - 1); };
    double sums[BINS] = {};
    for (int64_t i = 0; i < list.count; i++) sums[bin_of(list.items[i].score)] += list.items[i].weight;
    const int last = bin_of(low);
    int bin = 0;
    while (bin < last && before + sums[bin] < target) before += sums[bin++];
    const auto is_beside = [=](const Weighed& item) { return bin_of(item.score) != bin; };
    const int64_t kept = std::remove_if(list.items, list.items + list.count, is_beside) - list.items;
    if (kept == list.count) break;  // as near to each other as floats can be
    list.count = kept;
  }
  sort_best_first(list);
  for (int64_t i = 0; i < list.count; i++) {
    before += list.items[i].weight;
    if (before >= target) return list.items[i].score;
  }
  return list.items[list.count - 1].score;
}

// The score at which the weights of all scores from the best on reach `target`; the least if they never do. `room` must
// hold as many items as there are scores.
template <typename Weigh>
float floor_at(Scores scores, Weigh weigh, double target, Weighed* room) {
  constexpr int64_t FEW = 1024;
  constexpr int MAX_HALVINGS = 16;
  Share above{INFINITE, 0, 0}, from{std::numeric_limits<float>::lowest(), scores.count, 0};
  float limit = -16;
  for (int i = 0; i < MAX_HALVINGS && from.count - above.count > FEW; i++) {
    const Share share = share_from(scores, weigh, limit);
    (share.weight < target ? above : from) = share;
    const float top = std::min(above.limit, 0.0f);
    if (from.limit < -1e6f) limit = 4 * limit;  // nothing below is known yet
    else limit = (from.limit + top) / 2;
  }
  const WeighedList between = list_between(scores, weigh, from.limit, above.limit, room);
  return between.count ? place_in(between, above.weight, target) : above.limit;
}

// Most tokens that top-k keeps of which the nucleus is found from a sorted list. The vocabulary screen, which has no
// more than such a list, uses the same function, so that both round alike.
constexpr int64_t MAX_LISTED = 1024;

// Fills in the weights of scores sorted from the best on; the score at which they reach the share `top_p` of their sum.
static inline float nucleus_floor(WeighedList list, double top_p) {
  double mass = 0, sum = 0;
  for (int64_t i = 0; i < list.count; i++) {
    list.items[i].weight = exp(splat(list.items[i].score))[0];
    mass += list.items[i].weight;
  }
  for (int64_t i = 0; i < list.count; i++) {
    sum += list.items[i].weight;
    if (sum >= top_p * mass) return list.items[i].score;
  }
  return list.items[list.count - 1].score;
}

struct FilterRoom {
  float* weights;   // as many as scores
  Weighed* items;  // the same
};

// `top_k` is 0 (off) or less than the number of scores; `top_p` is 1 (off) or less; at least one must be on.
static inline float filter_floor(Scores scores, int64_t top_k, double top_p, FilterRoom room) {
  const float kth = top_k ? floor_at(scores, ByCount{}, double(top_k), room.items) : -INFINITE;
  if (top_p == 1) return kth;
  if (top_k && top_k <= MAX_LISTED) {
    const WeighedList kept = list_between(scores, ByCount{}, kth, INFINITE, room.items);
    if (kept.count <= MAX_LISTED) {
      sort_best_first(kept);
      return nucleus_floor(kept, top_p);
    }
  }
  Sum mass;
  for (int64_t i = 0; i < scores.count; i += 16) {
    const f32x16 v = load(scores.values + i);
    const f32x16 weights = v >= kth ? exp(v) : f32x16{};
    store(room.weights + i, weights);
    mass.add(weights);
  }
  return floor_at(scores, ByMass{room.weights}, top_p * mass.value(), room.items);
}
