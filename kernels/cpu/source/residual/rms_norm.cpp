// RMS norm, alone or with the residual add before it; see kernels/residual/rms_norm.py.
#include "norm_rows.h"

namespace {

// The weight may be wider than x (Gemma's 1 + w).
template <typename T, typename W>
void normalise(const T* x, const W* weight, T* y, int64_t width, float eps) {
  f32x16 squares{};
  for_each_part(width, [&](int64_t d, int64_t count) {
    const f32x16 v = load_first(x + d, count);
    squares = fma(v, v, squares);
  });
  const f32x16 scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + eps));
  for_each_part(width, [&](int64_t d, int64_t count) {
    const f32x16 v = load_first(x + d, count) * scale;
    store_first(y + d, v * load_first(weight + d, count), count);
  });
}

// in: x [rows][width], weight [width], residual as x or null; out: y, s
// i: width, weight is float; f: eps
// As norm_rows.h says; i[1]: whether the weight is float; f: eps
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const int64_t width = args.i[0];
  const float eps = float(args.f[0]);
  norm_rows<T>(args, pass, work, [&](const T* x, T* y) {
    if (args.i[1])
      normalise(x, static_cast<const float*>(args.in[1]), y, width, eps);
    else
      normalise(x, static_cast<const T*>(args.in[1]), y, width, eps);
  });
}

}  // namespace

OPERATOR(rms_norm_f32) { run<float>(args, pass, work); }
OPERATOR(rms_norm_bf16) { run<bf16>(args, pass, work); }
