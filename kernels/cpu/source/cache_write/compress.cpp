// Rows of tokens into the paged cache, and entries out of them; see kernels/cache_write/compress.py.
#include <cmath>
#include <limits>

#include "functions.h"
#include "operator.h"
#include "rows.h"
#include "token_slots.h"
#include "turn.h"

namespace {

// in: rows [rows][W], arena, positions, query starts, tables; i: W, S, items from table to table
template <typename T>
void write_rows(const Args& args, const Pass& pass, Work& work) {
  const int64_t width = args.i[0];
  const TokenSlots slots{static_cast<const int64_t*>(args.in[2]),
                         static_cast<const int64_t*>(args.in[3]),
                         static_cast<const int64_t*>(args.in[4]), args.i[1], args.i[2]};
  T* arena = static_cast<T*>(const_cast<void*>(args.in[1]));
  int64_t request = 0;
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span))
    for (int64_t token = span.begin; token < span.end; token++) {
      request = slots.request_of(token, request);
      const T* row = static_cast<const T*>(args.in[0]) + token * width;
      T* into = arena + slots.slot(request, slots.positions[token]) * width;
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

  // run(values, gates, bias of gates) for the tokens of both windows, first to last.
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
    turn<false>(tail, cos, sin, half, true, tail);
    for (int64_t d = 0; d < width; d++) narrow(nan_if_infinite(to_float(entry[d])), entry + d);
  }
};

// in: arena, positions, query starts, tables, bias [m][s H] float, weight of the norm [H], frequencies
// of rotary positions [half]
// i: m, s, H, half, S, items from table to table; f: eps of the norm, factor of cos and sin
template <typename T>
void close_windows(const Args& args, const Pass& pass, Work& work) {
  const int64_t size = args.i[0], width = args.i[2], half = args.i[3];
  float* scratch = static_cast<float*>(work.scratch(size_t(3 * width + 2 * half) * sizeof(float)));
  const Closer<T> closer{
      static_cast<T*>(const_cast<void*>(args.in[0])),
      static_cast<const float*>(args.in[4]),
      static_cast<const T*>(args.in[5]),
      {static_cast<const int64_t*>(args.in[1]), static_cast<const int64_t*>(args.in[2]),
       static_cast<const int64_t*>(args.in[3]), args.i[4], args.i[5]},
      static_cast<const float*>(args.in[6]),
      size,
      args.i[1],
      width,
      half,
      float(args.f[0]),
      float(args.f[1]),
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

OPERATOR(write_rows_f32) { write_rows<float>(args, pass, work); }
OPERATOR(write_rows_bf16) { write_rows<bf16>(args, pass, work); }
OPERATOR(close_windows_f32) { close_windows<float>(args, pass, work); }
OPERATOR(close_windows_bf16) { close_windows<bf16>(args, pass, work); }
