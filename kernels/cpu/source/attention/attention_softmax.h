// Online softmax over keys that come in chunks, for several query rows at a time; scores are logarithms to base 2.
//
//   top     the largest score so far          weight  = 2^(score - top)
//   total   sum of the weights, by lane       out     = sum of weight * value
//
// When `top` grows, earlier sums are scaled down. Two such states are merged by the same rule (`merge`). A masked key
// has weight 0 and does not change a single bit as long as its value is finite. A visible score that is NaN makes the
// whole row NaN; so does a masked NaN value in the same chunk as a visible key, as 0 times NaN is NaN.
#pragma once

#include <cfloat>

#include "simd.h"

constexpr float HIDDEN = -INFINITY;
constexpr float NOTHING_YET = -FLT_MAX;  // finite, so that HIDDEN - NOTHING_YET is a number

// 2^x for x <= 127, within 2 ulp; 0 below -127, and NaN for NaN.
f32x16 powers_of_2(f32x16 x);

// How the product of a query and a key becomes a score.
struct Scoring {
  float factor;  // of the product
  float cap;     // of its tanh; 0: there is none

  Scoring(double scale, double softcap)
      : factor(float(softcap == 0 ? scale * M_LOG2E : scale / softcap)), cap(float(softcap * M_LOG2E)) {}
};

// Keys of a chunk that a row sees, possibly none: begin .. end - 1, and possibly some of the first keys of the context,
// which are before `end`, too.
struct Visible {
  int64_t begin, end;
  int64_t first_begin = 0, first_end = 0;
};

// The softmax state of a row: its largest score, and the sums of its weights by lane.
struct Totals {
  float *tops, *totals;
  int64_t stride;  // floats from one row to the next

  float& top(int64_t row) const { return tops[row * stride]; }
  float* total(int64_t row) const { return totals + row * stride; }
};

struct Weighing {
  int64_t rows;
  const Scoring& scoring;
  // Factors for the keys of the chunk if the cache has scales, else null: scale times `scoring.factor`, and the factors
  // of weights.
  const float *key_factors, *value_scales;
};

// Converts products of rows with a chunk of keys to weights in T; the sums of the weights are added to `totals`, and
// `rescales` gets the factors by which earlier sums must be scaled down. `visible`: the keys that each row sees; null:
// all. Rows are CHUNK apart, and go through each step together, so that none waits for its own maximum. The content of
// `scores` is undefined afterwards.
template <typename T>
void weigh(const Weighing& what, const Visible* visible, float* scores, Totals of, T* weights, float* rescales);
