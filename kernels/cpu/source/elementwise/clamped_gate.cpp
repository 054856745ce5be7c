// A gate that is cut off; see kernels/elementwise/clamped_swiglu.py.
#include "functions.h"
#include "operator.h"
#include "rows.h"

namespace {

// in: gate and up [rows][2F]; out: [rows][F]; i: F; f: alpha, limit, offset
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const int64_t width = args.i[0];
  const f32x16 most = splat(float(args.f[1])), least = -most;
  const float alpha = float(args.f[0]), offset = float(args.f[2]);
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* x = static_cast<const T*>(args.in[0]) + row * 2 * width;
      for_each_part(width, [&](int64_t d, int64_t count) {
        f32x16 gate = load_first(x + d, count), up = load_first(x + width + d, count);
        gate = gate > most ? most : gate;
        up = up > most ? most : up < least ? least : up;
        const f32x16 passed = gate / (1.0f + exp(-alpha * gate));
        store_first(static_cast<T*>(args.out[0]) + row * width + d, (up + offset) * passed, count);
      });
    }
}

}  // namespace

OPERATOR(clamped_gate_f32) { run<float>(args, pass, work); }
OPERATOR(clamped_gate_bf16) { run<bf16>(args, pass, work); }
