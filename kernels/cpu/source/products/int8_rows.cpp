// Quantizes activations to 8 bits, with one scale per row; see kernels/products/int8_rows.py.
#include "int8_rows.h"

namespace {

constexpr int64_t ROWS_AT_ONCE = 4;

template <typename T>
struct Int8RowsArgs : Args {
  FIELDS(Args,
         const T* x;            // [rows of the pass * each][width]
         uint8_t* y;            // [as many][row_bytes] in eight bits
         int64_t width;         // K
         int64_t padded_width;
         int64_t row_bytes;
         int64_t stride;        // items from row to row of x
         int64_t each;)         // rows of x for each row of the pass
};

template <typename T>
void run(const Int8RowsArgs<T>& args, const Pass& pass, Work& work) {
  const Int8Rows rows{args.y, args.padded_width, args.row_bytes};
  const T* x = args.x;
  Span span;
  while (work.take(row_count(args, pass) * args.each, ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++)
      round_row(x + row * args.stride, args.width, rows, row);
}

}  // namespace

OPERATOR(int8_rows_f32, Int8RowsArgs<float>) { run<float>(args, pass, work); }
OPERATOR(int8_rows_bf16, Int8RowsArgs<bf16>) { run<bf16>(args, pass, work); }
