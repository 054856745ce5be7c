// A residual of several streams; see kernels/residual/hyper_connections.py.
#include <cmath>

#include "functions.h"
#include "operator.h"
#include "rows.h"

namespace {

constexpr int64_t MAX_STREAMS = 16;

// in: x [rows][D]; out: streams [rows][n][D]; i: D, n
template <typename T>
void spread(const Args& args, const Pass& pass, Work& work) {
  const int64_t width = args.i[0], num_streams = args.i[1];
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++)
      for (int64_t stream = 0; stream < num_streams; stream++)
        memcpy(static_cast<T*>(args.out[0]) + (row * num_streams + stream) * width,
               static_cast<const T*>(args.in[0]) + row * width, size_t(width) * sizeof(T));
}

// in: streams [rows][W]; out: float [rows][W], of root mean square 1; i: W; f: eps
template <typename T>
void norm(const Args& args, const Pass& pass, Work& work) {
  const int64_t width = args.i[0];
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* x = static_cast<const T*>(args.in[0]) + row * width;
      float* y = static_cast<float*>(args.out[0]) + row * width;
      f32x16 squares{};
      for_each_part(width, [&](int64_t d, int64_t count) {
        const f32x16 v = load_first(x + d, count);
        squares = fma(v, v, squares);
      });
      const f32x16 scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + float(args.f[0])));
      for_each_part(width, [&](int64_t d, int64_t count) {
        store_first(y + d, load_first(x + d, count) * scale, count);
      });
    }
}

// Not inlined here and below: either would be compiled for each number of streams.
__attribute__((noinline)) void sigmoid(const float* z, int64_t count, float times, float plus, float* y) {
  for_each_part(count, [&](int64_t i, int64_t part) {
    const f32x16 v = load_first(z + i, part);
    store_first(y + i, times / (1.0f + exp(-v)) + plus, part);
  });
}

// n x n numbers to weights of which rows and columns add up to one, columns last.
__attribute__((noinline)) void doubly_stochastic(float* comb, int64_t n, int64_t num_rounds, float eps) {
  const auto scale = [&](int64_t line_step, int64_t step, float more) {
    for (int64_t line = 0; line < n; line++) {
      float total = 0;
      for (int64_t i = 0; i < n; i++) total += comb[line * line_step + i * step];
      for (int64_t i = 0; i < n; i++) comb[line * line_step + i * step] /= total + more;
    }
  };
  for (int64_t row = 0; row < n; row++) {
    float* weights = comb + row * n;
    float most = weights[0];
    for (int64_t i = 1; i < n; i++) most = weights[i] > most ? weights[i] : most;
    for_each_part(n, [&](int64_t i, int64_t part) {
      store_first(weights + i, exp(load_first(weights + i, part) - most), part);
    });
  }
  scale(n, 1, 0);
  for (int64_t i = 0; i < n * n; i++) comb[i] += eps;
  scale(1, n, eps);
  for (int64_t round = 1; round < num_rounds; round++) {
    scale(n, 1, eps);
    scale(1, n, eps);
  }
}

// in: streams [rows][n][D], mixed [rows][M] float, scale, base [M]; M is n, or 2n + n n where post and
// comb are wanted, and of scales there is one, or three
// out: x [rows][D], post [rows][n] float, comb [rows][n][n] float; i: n, D, rounds, is post wanted; f: eps
template <int64_t NUM_STREAMS, typename T>
void mix(const Args& args, const Pass& pass, Work& work) {
  const int64_t n = NUM_STREAMS ? NUM_STREAMS : args.i[0], width = args.i[1];
  const bool is_whole = args.i[3];
  const int64_t count = is_whole ? 2 * n + n * n : n;
  const float* scale = static_cast<const float*>(args.in[2]);
  const float* base = static_cast<const float*>(args.in[3]);
  const float eps = float(args.f[0]);
  float z[2 * MAX_STREAMS + MAX_STREAMS * MAX_STREAMS], pre[MAX_STREAMS];
  Span span;
  while (work.take(row_count(args, pass), 1, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const float* mixed = static_cast<const float*>(args.in[1]) + row * count;
      for (int64_t i = 0; i < count; i++) {
        const float own = scale[i < n ? 0 : i < 2 * n ? 1 : 2];
        z[i] = mixed[i] * own + base[i];
      }
      sigmoid(z, n, 1, eps, pre);
      const T* streams = static_cast<const T*>(args.in[0]) + row * n * width;
      T* x = static_cast<T*>(args.out[0]) + row * width;
      for_each_part(width, [&](int64_t d, int64_t part) {
        f32x16 total{};
        for (int64_t i = 0; i < n; i++)
          total = fma(splat(pre[i]), load_first(streams + i * width + d, part), total);
        store_first(x + d, total, part);
      });
      if (!is_whole) continue;
      sigmoid(z + n, n, 2, 0, static_cast<float*>(args.out[1]) + row * n);
      float* comb = static_cast<float*>(args.out[2]) + row * n * n;
      memcpy(comb, z + 2 * n, size_t(n * n) * sizeof(float));
      doubly_stochastic(comb, n, args.i[2], eps);
    }
}

// in: streams [rows][n][D], y [rows][D], post [rows][n] float, comb [rows][n][n] float
// out: streams [rows][n][D]; i: n, D
template <int64_t NUM_STREAMS, typename T>
void expand(const Args& args, const Pass& pass, Work& work) {
  const int64_t n = NUM_STREAMS ? NUM_STREAMS : args.i[0], width = args.i[1];
  Span span;
  while (work.take(row_count(args, pass), 1, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* streams = static_cast<const T*>(args.in[0]) + row * n * width;
      const T* y = static_cast<const T*>(args.in[1]) + row * width;
      const float* post = static_cast<const float*>(args.in[2]) + row * n;
      const float* comb = static_cast<const float*>(args.in[3]) + row * n * n;
      T* into = static_cast<T*>(args.out[0]) + row * n * width;
      for_each_part(width, [&](int64_t d, int64_t part) {
        const f32x16 made = load_first(y + d, part);
        f32x16 own[MAX_STREAMS];
        for (int64_t i = 0; i < n; i++) own[i] = load_first(streams + i * width + d, part);
        for (int64_t j = 0; j < n; j++) {
          f32x16 total = made * post[j];
          for (int64_t i = 0; i < n; i++) total = fma(splat(comb[i * n + j]), own[i], total);
          store_first(into + j * width + d, total, part);
        }
      });
    }
}

// As DeepSeek V4 has them, four, or any other number.
template <typename T>
void mix_any(const Args& args, const Pass& pass, Work& work) {
  if (args.i[0] == 4) return mix<4, T>(args, pass, work);
  mix<0, T>(args, pass, work);
}

template <typename T>
void expand_any(const Args& args, const Pass& pass, Work& work) {
  if (args.i[0] == 4) return expand<4, T>(args, pass, work);
  expand<0, T>(args, pass, work);
}

}  // namespace

OPERATOR(spread_streams_f32) { spread<float>(args, pass, work); }
OPERATOR(spread_streams_bf16) { spread<bf16>(args, pass, work); }
OPERATOR(norm_streams_f32) { norm<float>(args, pass, work); }
OPERATOR(norm_streams_bf16) { norm<bf16>(args, pass, work); }
OPERATOR(mix_streams_f32) { mix_any<float>(args, pass, work); }
OPERATOR(mix_streams_bf16) { mix_any<bf16>(args, pass, work); }
OPERATOR(expand_streams_f32) { expand_any<float>(args, pass, work); }
OPERATOR(expand_streams_bf16) { expand_any<bf16>(args, pass, work); }
