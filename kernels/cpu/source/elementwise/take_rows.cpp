// Some rows of a matrix; see kernels/elementwise/take_rows.py.
#include <cstring>

#include "operator.h"
#include "rows.h"

namespace {

// in: x [any][width], numbers [rows] int64; out: y [rows][width]; i: width
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const int64_t width = args.i[0], rows = row_count(args, pass);
  const T* x = static_cast<const T*>(args.in[0]);
  const int64_t* numbers = static_cast<const int64_t*>(args.in[1]);
  T* y = static_cast<T*>(args.out[0]);
  Span span;
  while (work.take(rows, ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++)
      memcpy(y + row * width, x + numbers[row] * width, size_t(width) * sizeof(T));
}

}  // namespace

OPERATOR(take_rows_f32) { run<float>(args, pass, work); }
OPERATOR(take_rows_bf16) { run<bf16>(args, pass, work); }
