// Finishes the sums of a row and a panel: adds the bias, applies the gate, rounds, and stores them in y. The
// destination is prefetched before the product.
#pragma once

#include "functions.h"
#include "linear_tile.h"

// Prefetches `count` items for writing; otherwise each line would be waited for when all are written at once.
template <typename T>
static inline void prefetch_to_write(T* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(p + i, 1);
}

template <typename T>
static inline void store_up_to(T* p, f32x16 v, int64_t count) {
  if (count >= 16)
    store(p, v);
  else if (count > 0)
    store_part(p, v, count);
}

template <typename T>
static inline f32x16 load_up_to(const T* p, int64_t count) {
  return count >= 16 ? load(p) : count > 0 ? load_part(p, count) : f32x16{};
}

// Prefetches the destination of a row and a panel, if the finish knows it.
template <typename Finish>
static inline void prefetch_outputs(const Finish& finish, int64_t row, int64_t panel) {
  if constexpr (requires { finish.prefetch_outputs(row, panel); }) finish.prefetch_outputs(row, panel);
}

// y [rows][N] = sums + bias, which may be null
template <typename T, typename Out>
struct AddBias {
  const T* bias;
  Out* y;
  int64_t width;  // N

  int64_t num_panels() const { return (width + PANEL - 1) / PANEL; }
  void prefetch_outputs(int64_t row, int64_t panel) const { prefetch_to_write(y + row * width + panel * PANEL, PANEL); }

  void operator()(int64_t row, int64_t panel, const float* sums) const {
    for (int64_t half = 0; half < PANEL; half += 16) {
      const int64_t column = panel * PANEL + half, count = width - column;
      f32x16 v = load(sums + half);
      if (bias) v += load_up_to(bias + column, count);
      store_up_to(y + row * width + column, v, count);
    }
  }
};

// y [rows][F] = act(left half + bias) * (right half + bias): 16 columns of the gate and 16 of up alternate
template <typename T, f32x16 activation(f32x16)>
struct Gate {
  const T* bias;  // [2F] or null
  T* y;
  int64_t width;  // F

  int64_t num_panels() const { return (width + PANEL / 2 - 1) / (PANEL / 2); }
  void prefetch_outputs(int64_t row, int64_t panel) const {
    prefetch_to_write(y + row * width + panel * (PANEL / 2), PANEL / 2);
  }

  void operator()(int64_t row, int64_t panel, const float* sums) const {
    const int64_t column = panel * (PANEL / 2), count = width - column;
    f32x16 gate = load(sums), up = load(sums + PANEL / 2);
    if (bias) {
      gate += load_up_to(bias + column, count);
      up += load_up_to(bias + width + column, count);
    }
    store_up_to(y + row * width + column, activation(gate) * up, count);
  }
};
