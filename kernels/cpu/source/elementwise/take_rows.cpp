// Gathers rows of a matrix; see kernels/elementwise/take_rows.py.
#include <cstring>

#include "operator.h"
#include "rows.h"

namespace {

template <typename T>
struct TakeRowsArgs : Args {
  FIELDS(Args,
         const T* x;              // [any][width]
         const int64_t* numbers;  // [rows]
         T* y;                    // [rows][width]
         int64_t width;)
};

template <typename T>
void run(const TakeRowsArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width, rows = row_count(args, pass);
  const T* x = args.x;
  const int64_t* numbers = args.numbers;
  T* y = args.y;
  Span span;
  while (work.take(rows, ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++)
      memcpy(y + row * width, x + numbers[row] * width, size_t(width) * sizeof(T));
}

}  // namespace

OPERATOR(take_rows_f32, TakeRowsArgs<float>) { run<float>(args, pass, work); }
OPERATOR(take_rows_bf16, TakeRowsArgs<bf16>) { run<bf16>(args, pass, work); }
