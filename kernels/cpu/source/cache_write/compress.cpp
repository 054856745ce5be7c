// Writes rows of tokens into the paged cache, and compresses them to entries; see kernels/cache_write/compress.py.
#include <cmath>
#include <limits>

#include "functions.h"
#include "operator.h"
#include "rows.h"
#include "token_slots.h"
#include "rotate.h"

namespace {

template <typename T>
struct WriteRowsArgs : Args {
  FIELDS(Args,
         const T* x;                   // [rows][W]
         T* arena;                     // [blocks][S][W]
         const int64_t* positions;     // [rows]
         const int64_t* query_starts;  // [R + 1]
         const int64_t* block_tables;  // [R][table_stride]
         int64_t width;                // W
         int64_t block_size;           // S
         int64_t table_stride;)
};

template <typename T>
void write_rows(const WriteRowsArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width;
  const TokenSlots slots = slots_of(args);
  int64_t request = 0;
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span))
    for (int64_t token = span.begin; token < span.end; token++) {
      request = slots.request_of(token, request);
      const T* row = args.x + token * width;
      T* into = args.arena + slots.slot(request, slots.positions[token]) * width;
      for (int64_t d = 0; d < width; d++) narrow(nan_if_infinite(to_float(row[d])), into + d);
    }
}

template <typename T>
struct Closer {
  T* arena;
  const float* bias;  // [m][s H]
  const T* weight;    // [H]
  TokenSlots slots;
  const float* frequencies;  // [half]
  int64_t size, series, width, half;
  float eps, factor;
  float *most, *total, *values;  // [H] each
  float *cos, *sin;              // [half] each

  int64_t row_width() const { return 2 * series * width; }

  // Calls run(values, gates, bias of gates) for the tokens of both windows, first to last.
  template <typename Run>
  void each_token(int64_t request, int64_t last, Run run) const {
    for (int64_t p = last - series * size + 1; p <= last; p++) {
      if (p < 0) continue;
      const int64_t own = p > last - size ? series - 1 : 0;  // the series that counts
      const T* row = arena + slots.slot(request, p) * row_width() + own * width;
      run(row, row + series * width, bias + (p % size * series + own) * width);
    }
  }

  void close(int64_t request, int64_t last) const {
    for (int64_t i = 0; i < half; i++) {
      const double angle = frequencies[i] * float(last - size + 1);
      cos[i] = float(std::cos(angle)) * factor;
      sin[i] = float(std::sin(angle)) * factor;
    }
    for (int64_t d = 0; d < width; d++) {
      most[d] = -std::numeric_limits<float>::infinity();
      total[d] = values[d] = 0;
    }
    each_token(request, last, [&](const T*, const T* gates, const float* more) {
      for_each_part(width, [&](int64_t d, int64_t count) {
        const f32x16 z = load_first(gates + d, count) + load_first(more + d, count);
        const f32x16 best = load_first(most + d, count);
        store_first(most + d, z > best ? z : best, count);
      });
    });
    each_token(request, last, [&](const T* own, const T* gates, const float* more) {
      for_each_part(width, [&](int64_t d, int64_t count) {
        const f32x16 z = load_first(gates + d, count) + load_first(more + d, count);
        const f32x16 share = exp(z - load_first(most + d, count));
        store_first(total + d, load_first(total + d, count) + share, count);
        store_first(values + d,
                    fma(share, load_first(own + d, count), load_first(values + d, count)), count);
      });
    });
    write(arena + slots.slot(request, last) * row_width() + (series - 1) * width);
  }

 private:
  void write(T* entry) const {
    f32x16 squares{};
    for_each_part(width, [&](int64_t d, int64_t count) {
      const f32x16 divisor = load_first(total + d, count);
      const f32x16 exact = load_first(values + d, count) / divisor;  // what is behind the end is not kept
      store_first(entry + d, exact, count);
      const f32x16 mean = load_first(entry + d, count);  // rounded
      squares = fma(mean, mean, squares);
    });
    const f32x16 scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + eps));
    for_each_part(width, [&](int64_t d, int64_t count) {
      const f32x16 v = load_first(entry + d, count) * scale * load_first(weight + d, count);
      store_first(entry + d, v, count);
    });
    T* tail = entry + width - 2 * half;
    rotate<false>(tail, cos, sin, half, true, tail);
    for (int64_t d = 0; d < width; d++) narrow(nan_if_infinite(to_float(entry[d])), entry + d);
  }
};

template <typename T>
struct CloseWindowsArgs : Args {
  FIELDS(Args,
         T* arena;                     // [blocks][S][2 s H]
         const int64_t* positions;     // [rows]
         const int64_t* query_starts;  // [R + 1]
         const int64_t* block_tables;  // [R][table_stride]
         const float* bias;            // [m][s H]
         const T* norm_weight;         // [H]
         const float* frequencies;     // [half] of rotary positions
         int64_t window_tokens;        // m
         int64_t num_series;           // s
         int64_t width;                // H
         int64_t half;
         int64_t block_size;           // S
         int64_t table_stride;
         double eps;
         double factor;)               // of cos and sin
};

template <typename T>
void close_windows(const CloseWindowsArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t size = args.window_tokens, width = args.width, half = args.half;
  float* scratch = static_cast<float*>(work.scratch(size_t(3 * width + 2 * half) * sizeof(float)));
  const Closer<T> closer{
      args.arena,
      args.bias,
      args.norm_weight,
      slots_of(args),
      args.frequencies,
      size,
      args.num_series,
      width,
      half,
      float(args.eps),
      float(args.factor),
      scratch,
      scratch + width,
      scratch + 2 * width,
      scratch + 3 * width,
      scratch + 3 * width + half};
  int64_t request = 0;
  Span span;
  while (work.take(row_count(args, pass), 1, span))
    for (int64_t token = span.begin; token < span.end; token++) {
      const int64_t position = closer.slots.positions[token];
      if ((position + 1) % size) continue;
      request = closer.slots.request_of(token, request);
      closer.close(request, position);
    }
}

}  // namespace

OPERATOR(write_rows_f32, WriteRowsArgs<float>) { write_rows<float>(args, pass, work); }
OPERATOR(write_rows_bf16, WriteRowsArgs<bf16>) { write_rows<bf16>(args, pass, work); }
OPERATOR(close_windows_f32, CloseWindowsArgs<float>) { close_windows<float>(args, pass, work); }
OPERATOR(close_windows_bf16, CloseWindowsArgs<bf16>) { close_windows<bf16>(args, pass, work); }
