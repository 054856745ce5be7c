// Quantizes activations to 8 bits, with one scale per row; see kernels/products/int8_rows.py.
#include "int8_rows.h"

namespace {

constexpr int64_t ROWS_AT_ONCE = 4;

typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));

int32_t total(i32x16 v) {
  i32x8 halves[2];
  memcpy(halves, &v, sizeof v);
  const i32x8 both = halves[0] + halves[1];
  return both[0] + both[1] + both[2] + both[3] + both[4] + both[5] + both[6] + both[7];
}

// An infinity or NaN makes the scale NaN, and so all products of the row.
template <typename T>
void quantize(const T* x, int64_t width, const Int8Rows& rows, int64_t row) {
  f32x16 furthest{}, poison{};
  for (int64_t k = 0; k < width; k += 16) {
    const f32x16 v = load_padded(x, k, width);
    furthest = larger(absolute(v), furthest);
    poison = fma(v, f32x16{}, poison);
  }
  const float limit = largest(furthest);
  const f32x16 inverse = splat(limit > TINY ? 127.0f / limit : 0.0f);
  int8_t* q = rows.values(row);
  int32_t* group_offsets = rows.group_offsets(row);
  int32_t total_of_row = 0;
  for (int64_t k = 0; k < rows.width; k += GROUP) {
    const i32x16 low = to_int(load_padded(x, k, width) * inverse);
    const i32x16 high = to_int(load_padded(x, k + 16, width) * inverse);
    const i8x16 bytes[2] = {__builtin_convertvector(low, i8x16),
                            __builtin_convertvector(high, i8x16)};
    memcpy(q + k, bytes, GROUP);
    const int32_t total_of_group = total(low + high);
    group_offsets[k / GROUP] = -8 * total_of_group;
    total_of_row += total_of_group;
  }
  rows.offset(row) = -128 * total_of_row;
  rows.scale(row) = limit / 127.0f + sum(poison);
}

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
      quantize(x + row * args.stride, args.width, rows, row);
}

}  // namespace

OPERATOR(int8_rows_f32, Int8RowsArgs<float>) { run<float>(args, pass, work); }
OPERATOR(int8_rows_bf16, Int8RowsArgs<bf16>) { run<bf16>(args, pass, work); }
