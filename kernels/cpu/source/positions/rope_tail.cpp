// Rotary positions of the last dimensions of heads; see kernels/positions/rope_tail.py.
#include <cmath>

#include "operator.h"
#include "rows.h"
#include "rotate.h"

namespace {

template <typename T>
struct RopeTailArgs : Args {
  FIELDS(Args,
         const T* x;        // [rows][N][H]
         const float* cos;  // [rows][half]
         const float* sin;
         T* y;              // as x
         int64_t num_heads;
         int64_t width;     // H
         int64_t half;
         int64_t is_back;
         int64_t is_unit;   // heads are made of unit size first
         double unit_eps;)
};

template <typename T>
void run(const RopeTailArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t heads = args.num_heads, width = args.width, half = args.half;
  const bool is_back = args.is_back, is_unit = args.is_unit;
  float* angles = static_cast<float*>(work.scratch(size_t(half) * sizeof(float)));
  Span span;
  while (work.take(row_count(args, pass), 1, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const float* cos = args.cos + row * half;
      const float* sin = args.sin + row * half;
      for (int64_t i = 0; i < half; i++) angles[i] = is_back ? -sin[i] : sin[i];
      for (int64_t head = row * heads; head < (row + 1) * heads; head++) {
        const T* x = args.x + head * width;
        T* y = args.y + head * width;
        f32x16 scale = splat(1);
        if (is_unit) {
          f32x16 squares{};
          for_each_part(width, [&](int64_t d, int64_t count) {
            const f32x16 v = load_first(x + d, count);
            squares = fma(v, v, squares);
          });
          scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + float(args.unit_eps)));
        }
        for_each_part(width, [&](int64_t d, int64_t count) {
          store_first(y + d, load_first(x + d, count) * scale, count);
        });
        T* tail = y + width - 2 * half;
        rotate<false>(tail, cos, angles, half, true, tail);
      }
    }
}

}  // namespace

OPERATOR(rope_tail_f32, RopeTailArgs<float>) { run<float>(args, pass, work); }
OPERATOR(rope_tail_bf16, RopeTailArgs<bf16>) { run<bf16>(args, pass, work); }
