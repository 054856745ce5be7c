// Softmax over keys that come in chunks, several query rows at a time; scores are to the base of 2.
//
//   top     the largest score so far          weight  = 2^(score - top)
//   total   sum of the weights, by lane       out     = sum of weight * value
//
// When `top` grows, what was summed up is scaled down. Two such states become one by the same rule
// (`merge`). A key that is hidden from a row has weight 0, and changes nothing as long as its value is finite:
// not the last bit. A score that is seen and no number makes the whole row NaN; so does a value that is no number
// and hidden, if it is in the same chunk as what the row sees, for 0 times NaN is NaN.
#pragma once

#include <cfloat>

#include "simd.h"

constexpr float HIDDEN = -INFINITY;
constexpr float NOTHING_YET = -FLT_MAX;  // finite, so that HIDDEN - NOTHING_YET is a number

// 2^x for x <= 127, within 2 ulp; 0 below -127, and NaN for NaN.
f32x16 powers_of_2(f32x16 x);

// How a product of query and key becomes a score.
struct Scoring {
  float factor;  // of the product
  float cap;     // of its tanh; 0: there is none

  Scoring(double scale, double softcap)
      : factor(float(softcap == 0 ? scale * M_LOG2E : scale / softcap)), cap(float(softcap * M_LOG2E)) {}
};

// Keys of a chunk that a row sees, perhaps none: begin .. end - 1, and perhaps some that were the first of
// all; those do not reach beyond the end.
struct Visible {
  int64_t begin, end;
  int64_t first_begin = 0, first_end = 0;
};

// What a row has summed up: its largest score, and the sums of its weights by lane.
struct Totals {
  float *tops, *totals;
  int64_t stride;  // floats from one row to the next

  float& top(int64_t row) const { return tops[row * stride]; }
  float* total(int64_t row) const { return totals + row * stride; }
};

struct Weighing {
  int64_t rows;
  const Scoring& scoring;
  // Of the keys of the chunk, where rows of the cache have scales, else null: scale times `scoring.factor`, and
  // what weights are multiplied by.
  const float *key_factors, *value_scales;
};

// Products of rows with a chunk of keys become weights, here in T; the sums of the weights are added to the totals,
// and `shrinks` say by how much what was summed up before has become less. Of the keys a row sees what `visible` says,
// and all if that is null. Rows are CHUNK apart, and go through each step together, so that none waits for its own
// largest score. What is left in `scores` is anything.
template <typename T>
void weigh(const Weighing& what, const Visible* visible, float* scores, Totals of, T* weights, float* shrinks);
