// Rotary positions of one row, in pairs; see kernels/cache_write/latent_write.py.
#pragma once

#include "simd.h"

namespace {

// Rotates pairs of x to y: items of a pair are `apart`, pairs `step` apart.
template <bool IS_STORED, typename T>
void rotate(const T* x, const float* cos, const float* sin, int64_t half, bool is_interleaved, T* y) {
  const int64_t step = is_interleaved ? 2 : 1, apart = is_interleaved ? 1 : half;
  for (int64_t i = 0; i < half; i++) {
    const float low = to_float(x[i * step]), high = to_float(x[i * step + apart]);
    const float first = low * cos[i] - high * sin[i], second = high * cos[i] + low * sin[i];
    narrow(IS_STORED ? nan_if_infinite(first) : first, y + i * step);
    narrow(IS_STORED ? nan_if_infinite(second) : second, y + i * step + apart);
  }
}

}  // namespace
