// Layer norm, alone or with the residual add before it; see kernels/residual/layer_norm.py.
#include "norm_rows.h"

namespace {

// The weight and bias may be wider than x.
template <typename T, typename W>
void normalise(const T* x, const W* weight, const W* bias, T* y, int64_t width, float eps) {
  f32x16 total{}, squares{};
  for_each_part(width, [&](int64_t d, int64_t count) { total += load_first(x + d, count); });
  const f32x16 mean = splat(sum(total) / float(width));
  for_each_part(width, [&](int64_t d, int64_t count) {
    const f32x16 centred = keep_first(load_first(x + d, count) - mean, count);
    squares = fma(centred, centred, squares);
  });
  const f32x16 scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + eps));
  for_each_part(width, [&](int64_t d, int64_t count) {
    const f32x16 centred = load_first(x + d, count) - mean;
    const f32x16 w = load_first(weight + d, count), b = load_first(bias + d, count);
    store_first(y + d, fma(centred * scale, w, b), count);
  });
}

// in: x [rows][width], weight [width], residual as x or null, bias [width]; out: y, s
// i: width, weight and bias are float; f: eps
// As norm_rows.h says; in[3] bias; i[1]: whether weight and bias are float; f: eps
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const int64_t width = args.i[0];
  const float eps = float(args.f[0]);
  norm_rows<T>(args, pass, work, [&](const T* x, T* y) {
    if (args.i[1])
      normalise(x, static_cast<const float*>(args.in[1]), static_cast<const float*>(args.in[3]), y,
                width, eps);
    else
      normalise(x, static_cast<const T*>(args.in[1]), static_cast<const T*>(args.in[3]), y, width,
                eps);
  });
}

}  // namespace

OPERATOR(layer_norm_f32) { run<float>(args, pass, work); }
OPERATOR(layer_norm_bf16) { run<bf16>(args, pass, work); }
