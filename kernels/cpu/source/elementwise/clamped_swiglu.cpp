// A clamped gate; see kernels/elementwise/clamped_swiglu.py.
#include "functions.h"
#include "operator.h"
#include "rows.h"

namespace {

template <typename T>
struct ClampedGateArgs : Args {
  FIELDS(Args,
         const T* gate_up;  // [rows][2F]
         T* y;              // [rows][F]
         int64_t width;     // F
         double alpha;
         double limit;
         double offset;)
};

template <typename T>
void run(const ClampedGateArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width;
  const f32x16 most = splat(float(args.limit)), least = -most;
  const float alpha = float(args.alpha), offset = float(args.offset);
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* x = args.gate_up + row * 2 * width;
      for_each_part(width, [&](int64_t d, int64_t count) {
        f32x16 gate = load_first(x + d, count), up = load_first(x + width + d, count);
        gate = gate > most ? most : gate;
        up = up > most ? most : up < least ? least : up;
        const f32x16 passed = gate / (1.0f + exp(-alpha * gate));
        store_first(args.y + row * width + d, (up + offset) * passed, count);
      });
    }
}

}  // namespace

OPERATOR(clamped_gate_f32, ClampedGateArgs<float>) { run<float>(args, pass, work); }
OPERATOR(clamped_gate_bf16, ClampedGateArgs<bf16>) { run<bf16>(args, pass, work); }
