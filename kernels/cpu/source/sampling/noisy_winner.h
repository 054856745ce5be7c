// The token with the largest sum of score and noise so far, of scores relative to the best one.
#pragma once

#include "philox.h"

constexpr float ROUNDED_AWAY = 1e-4f;  // more than float32 rounds in a sum of score and noise

struct Winner {
  int64_t token;
  double value;

  void meet(int64_t other, double its_value) {
    if (its_value > value || (its_value == value && other < token)) token = other, value = its_value;
  }

  // Sums below it cannot win.
  float needed() const { return float(value) - ROUNDED_AWAY; }
};

// The stream of a row of `streams` [rows][4]; see kernels/sampling/gumbel.py.
static inline Stream stream_of(const int64_t* streams, int64_t row) {
  const int64_t* words = streams + 4 * row;
  return {uint32_t(words[0]), uint32_t(words[1]), uint32_t(words[2]), uint32_t(words[3])};
}
