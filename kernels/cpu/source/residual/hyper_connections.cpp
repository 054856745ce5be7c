// A residual of several streams; see kernels/residual/hyper_connections.py.
#include <cmath>

#include "functions.h"
#include "operator.h"
#include "rows.h"

namespace {

constexpr int64_t MAX_STREAMS = 16;

template <typename T>
struct SpreadArgs : Args {
  FIELDS(Args,
         const T* x;  // [rows][D]
         T* streams;  // [rows][n][D]
         int64_t num_streams;
         int64_t width;)
};

template <typename T>
void spread(const SpreadArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width, num_streams = args.num_streams;
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++)
      for (int64_t stream = 0; stream < num_streams; stream++)
        memcpy(args.streams + (row * num_streams + stream) * width,
               args.x + row * width, size_t(width) * sizeof(T));
}

template <typename T>
struct NormStreamsArgs : Args {
  FIELDS(Args,
         const T* streams;  // [rows][width]
         float* normed;     // as they are, of root mean square 1
         int64_t width;
         double eps;)
};

template <typename T>
void norm(const NormStreamsArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width;
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* x = args.streams + row * width;
      float* y = args.normed + row * width;
      f32x16 squares{};
      for_each_part(width, [&](int64_t d, int64_t count) {
        const f32x16 v = load_first(x + d, count);
        squares = fma(v, v, squares);
      });
      const f32x16 scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + float(args.eps)));
      for_each_part(width, [&](int64_t d, int64_t count) {
        store_first(y + d, load_first(x + d, count) * scale, count);
      });
    }
}

// Not inlined, here and below, or it would be compiled for each number of streams.
__attribute__((noinline)) void sigmoid(const float* z, int64_t count, float times, float plus, float* y) {
  for_each_part(count, [&](int64_t i, int64_t part) {
    const f32x16 v = load_first(z + i, part);
    store_first(y + i, times / (1.0f + exp(-v)) + plus, part);
  });
}

// Converts n x n numbers to weights whose rows and columns add up to one, columns last (Sinkhorn).
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

// M is n, or 2n + n n if post and comb are wanted; there is one scale, or three.
template <typename T>
struct MixArgs : Args {
  FIELDS(Args,
         const T* streams;    // [rows][n][D]
         const float* mixed;  // [rows][M]
         const float* scale;
         const float* base;   // [M]
         T* x;                // [rows][D]
         float* post;         // [rows][n] or null
         float* comb;         // [rows][n][n] or null
         int64_t num_streams;
         int64_t width;
         int64_t num_rounds;
         double eps;)
};

template <int64_t NUM_STREAMS, typename T>
void mix(const MixArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t n = NUM_STREAMS ? NUM_STREAMS : args.num_streams, width = args.width;
  const bool is_whole = args.post;
  const int64_t count = is_whole ? 2 * n + n * n : n;
  const float* scale = args.scale;
  const float* base = args.base;
  const float eps = float(args.eps);
  float z[2 * MAX_STREAMS + MAX_STREAMS * MAX_STREAMS], pre[MAX_STREAMS];
  Span span;
  while (work.take(row_count(args, pass), 1, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const float* mixed = args.mixed + row * count;
      for (int64_t i = 0; i < count; i++) {
        const float own = scale[i < n ? 0 : i < 2 * n ? 1 : 2];
        z[i] = mixed[i] * own + base[i];
      }
      sigmoid(z, n, 1, eps, pre);
      const T* streams = args.streams + row * n * width;
      T* x = args.x + row * width;
      for_each_part(width, [&](int64_t d, int64_t part) {
        f32x16 total{};
        for (int64_t i = 0; i < n; i++)
          total = fma(splat(pre[i]), load_first(streams + i * width + d, part), total);
        store_first(x + d, total, part);
      });
      if (!is_whole) continue;
      sigmoid(z + n, n, 2, 0, args.post + row * n);
      float* comb = args.comb + row * n * n;
      memcpy(comb, z + 2 * n, size_t(n * n) * sizeof(float));
      doubly_stochastic(comb, n, args.num_rounds, eps);
    }
}

template <typename T>
struct ExpandArgs : Args {
  FIELDS(Args,
         const T* streams;   // [rows][n][D]
         const T* y;         // [rows][D]
         const float* post;  // [rows][n]
         const float* comb;  // [rows][n][n]
         T* expanded;        // as streams
         int64_t num_streams;
         int64_t width;)
};

template <int64_t NUM_STREAMS, typename T>
void expand(const ExpandArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t n = NUM_STREAMS ? NUM_STREAMS : args.num_streams, width = args.width;
  Span span;
  while (work.take(row_count(args, pass), 1, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* streams = args.streams + row * n * width;
      const T* y = args.y + row * width;
      const float* post = args.post + row * n;
      const float* comb = args.comb + row * n * n;
      T* into = args.expanded + row * n * width;
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

// Four streams, as in DeepSeek V4, or any other number.
template <typename T>
void mix_any(const MixArgs<T>& args, const Pass& pass, Work& work) {
  if (args.num_streams == 4) return mix<4, T>(args, pass, work);
  mix<0, T>(args, pass, work);
}

template <typename T>
void expand_any(const ExpandArgs<T>& args, const Pass& pass, Work& work) {
  if (args.num_streams == 4) return expand<4, T>(args, pass, work);
  expand<0, T>(args, pass, work);
}

}  // namespace

OPERATOR(spread_streams_f32, SpreadArgs<float>) { spread<float>(args, pass, work); }
OPERATOR(spread_streams_bf16, SpreadArgs<bf16>) { spread<bf16>(args, pass, work); }
OPERATOR(norm_streams_f32, NormStreamsArgs<float>) { norm<float>(args, pass, work); }
OPERATOR(norm_streams_bf16, NormStreamsArgs<bf16>) { norm<bf16>(args, pass, work); }
OPERATOR(mix_streams_f32, MixArgs<float>) { mix_any<float>(args, pass, work); }
OPERATOR(mix_streams_bf16, MixArgs<bf16>) { mix_any<bf16>(args, pass, work); }
OPERATOR(expand_streams_f32, ExpandArgs<float>) { expand_any<float>(args, pass, work); }
OPERATOR(expand_streams_bf16, ExpandArgs<bf16>) { expand_any<bf16>(args, pass, work); }
