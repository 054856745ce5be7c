// Tiles of products, for each number of rows of a tile.
#include "linear_tile.h"
#include "neon_tile.h"

namespace {

#if defined(__aarch64__)
template <int ROWS, int VECTORS_OF, typename T, typename PrefetchStep>
void multiply_columns(const T* x, int64_t x_stride, const T* panel, int64_t num_steps, PrefetchStep prefetch,
                      float* sums) {
  const auto all = neon::sums_of<ROWS, VECTORS_OF>(x, x_stride, panel, num_steps, prefetch);
  neon::unrolled<ROWS>([&](auto row) {
    neon::unrolled<VECTORS_OF>([&](auto v) { vst1q_f32(sums + row * PANEL + v * LANES, all.of(row, v)); });
  });
}

template <int ROWS, typename T, int LEVEL>
void multiply_tile(const T* x, int64_t x_stride, const T* panel, int64_t num_steps,
                   Prefetch<LEVEL> ahead, float* sums) {
  constexpr int AT_ONCE = neon::vectors_at_once(ROWS);
  multiply_columns<ROWS, AT_ONCE>(x, x_stride, panel, num_steps, [&] { ahead.step(); }, sums);
  for (int64_t column = AT_ONCE * LANES; column < PANEL; column += AT_ONCE * LANES)
    multiply_columns<ROWS, AT_ONCE>(x, x_stride, panel + column * Step<T>::DEPTH, num_steps, [] {}, sums + column);
}
#else
template <int ROWS, typename T, int LEVEL>
void multiply_tile(const T* x, int64_t x_stride, const T* panel, int64_t num_steps,
                   Prefetch<LEVEL> ahead, float* sums) {
  constexpr int64_t DEPTH = Step<T>::DEPTH;
  Lanes sum[ROWS][VECTORS] = {};
  for (int64_t step = 0; step < num_steps; step++) {
    Words w[VECTORS];
#pragma GCC unroll 8  // as one copy, they would go through memory
    for (int v = 0; v < VECTORS; v++) {
      memcpy(&w[v], panel + v * LANES * DEPTH, sizeof(Words));
      if constexpr (ROWS > 1) keep_in_register(w[v]);
    }
    for (int row = 0; row < ROWS; row++)
      for (int v = 0; v < VECTORS; v++)
        sum[row][v] = Step<T>::add(sum[row][v], x + row * x_stride, w[v]);
    ahead.step();
    panel += PANEL * DEPTH;
    x += DEPTH;
  }
  for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++)
      memcpy(sums + row * PANEL + v * LANES, &sum[row][v], sizeof(Lanes));
  }
}
#endif

template <int ROWS, typename T, int LEVEL>
void multiply_some(int64_t rows, const T* x, int64_t x_stride, const T* panel, int64_t num_steps,
                   Prefetch<LEVEL> ahead, float* sums) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS)
      return multiply_some<ROWS - 1>(rows, x, x_stride, panel, num_steps, ahead, sums);
  }
  multiply_tile<ROWS>(x, x_stride, panel, num_steps, ahead, sums);
}

}  // namespace

template <typename T, int LEVEL>
void multiply_rows(int64_t rows, const T* x, int64_t x_stride, const T* panel, int64_t num_steps,
                   Prefetch<LEVEL> ahead, float* sums) {
  if constexpr (sizeof(T) == 2) {
    if (uses_tiles()) {
      const TileFactors factors{x, x_stride * int64_t(sizeof(T)), panel, num_steps};
      return multiply_bf16_by_tiles(rows, factors, {ahead.next, ahead.advance}, sums);
    }
  }
  multiply_some<MAX_PLAIN_ROWS>(rows, x, x_stride, panel, num_steps, ahead, sums);
}

template void multiply_rows(int64_t, const float*, int64_t, const float*, int64_t, Prefetch<1>, float*);
template void multiply_rows(int64_t, const float*, int64_t, const float*, int64_t, Prefetch<2>, float*);
template void multiply_rows(int64_t, const bf16*, int64_t, const bf16*, int64_t, Prefetch<1>, float*);
template void multiply_rows(int64_t, const bf16*, int64_t, const bf16*, int64_t, Prefetch<2>, float*);
