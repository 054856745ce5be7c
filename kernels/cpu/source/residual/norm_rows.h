// The input rows of norms: x, or the sum of x and a residual.
#pragma once

#include "operator.h"
#include "rows.h"

template <typename T>
struct NormArgs : Args {
  FIELDS(Args,
         const T* x;            // [rows][width]
         const void* weight;    // [width] of T or float
         const T* residual;     // as x, or null
         T* y;                  // as x
         T* s;                  // x + residual, or null
         int64_t width;
         int64_t has_float_weight;
         double eps;)
};

// `normalise(x, y)` writes one row of y.
template <typename T, typename Normalise>
void norm_rows(const NormArgs<T>& args, const Pass& pass, Work& work, Normalise normalise) {
  const int64_t width = args.width, rows = row_count(args, pass);
  Span span;
  while (work.take(rows, ROWS_AT_ONCE, span)) {
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* x = args.x + row * width;
      T* y = args.y + row * width;
      if (args.residual) {
        T* s = args.s + row * width;
        add_rows(x, args.residual + row * width, s, width);
        x = s;  // rounded to T first, as it will be read by the next block
      }
      normalise(x, y);
    }
  }
}
