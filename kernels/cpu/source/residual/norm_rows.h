// The rows that norms take: x, or x and what is added to it first.
#pragma once

#include "operator.h"
#include "rows.h"

// in: x [rows][width], a weight, residual as x or null; out: y, s = x + residual; i: width
// `normalise(x, y)` makes one row of y.
template <typename T, typename Normalise>
void norm_rows(const Args& args, const Pass& pass, Work& work, Normalise normalise) {
  const int64_t width = args.i[0], rows = row_count(args, pass);
  Span span;
  while (work.take(rows, ROWS_AT_ONCE, span)) {
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* x = static_cast<const T*>(args.in[0]) + row * width;
      T* y = static_cast<T*>(args.out[0]) + row * width;
      if (args.in[2]) {
        T* s = static_cast<T*>(args.out[1]) + row * width;
        add_rows(x, static_cast<const T*>(args.in[2]) + row * width, s, width);
        x = s;  // rounded to T first, as it will be read by the next block
      }
      normalise(x, y);
    }
  }
}
