// Rotary positions of one row, in pairs; see kernels/latent_write.py.
#pragma once

#include "simd.h"

namespace {

// What is stored must be finite: slots are read, and weighted zero, by whoever comes later.
float finite(float x) { return std::isfinite(x) ? x : 0.0f; }

// Pairs of x, as y: `step` apart from the next pair, `apart` from each other.
template <bool IS_STORED, typename T>
void turn(const T* x, const float* cos, const float* sin, int64_t half, bool is_interleaved, T* y) {
  const int64_t step = is_interleaved ? 2 : 1, apart = is_interleaved ? 1 : half;
  for (int64_t i = 0; i < half; i++) {
    const float low = to_float(x[i * step]), high = to_float(x[i * step + apart]);
    const float first = low * cos[i] - high * sin[i], second = high * cos[i] + low * sin[i];
    narrow(IS_STORED ? finite(first) : first, y + i * step);
    narrow(IS_STORED ? finite(second) : second, y + i * step + apart);
  }
}

}  // namespace
