// Rotary positions of the ends of heads; see kernels/positions/rope_tail.py.
#include <cmath>

#include "operator.h"
#include "rows.h"
#include "turn.h"

namespace {

// in: x [rows][N][H], cos, sin [rows][half]; out: y [rows][N][H]
// i: N, H, half, is turned back, is made of unit size first; f: eps of that
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const int64_t heads = args.i[0], width = args.i[1], half = args.i[2];
  const bool is_back = args.i[3], is_unit = args.i[4];
  float* angles = static_cast<float*>(work.scratch(size_t(half) * sizeof(float)));
  Span span;
  while (work.take(row_count(args, pass), 1, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const float* cos = static_cast<const float*>(args.in[1]) + row * half;
      const float* sin = static_cast<const float*>(args.in[2]) + row * half;
      for (int64_t i = 0; i < half; i++) angles[i] = is_back ? -sin[i] : sin[i];
      for (int64_t head = row * heads; head < (row + 1) * heads; head++) {
        const T* x = static_cast<const T*>(args.in[0]) + head * width;
        T* y = static_cast<T*>(args.out[0]) + head * width;
        f32x16 scale = splat(1);
        if (is_unit) {
          f32x16 squares{};
          for_each_part(width, [&](int64_t d, int64_t count) {
            const f32x16 v = load_first(x + d, count);
            squares = fma(v, v, squares);
          });
          scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + float(args.f[0])));
        }
        for_each_part(width, [&](int64_t d, int64_t count) {
          store_first(y + d, load_first(x + d, count) * scale, count);
        });
        T* tail = y + width - 2 * half;
        turn<false>(tail, cos, angles, half, true, tail);
      }
    }
}

}  // namespace

OPERATOR(rope_tail_f32) { run<float>(args, pass, work); }
OPERATOR(rope_tail_bf16) { run<bf16>(args, pass, work); }
