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

template <typename T>
struct LayerNormArgs : NormArgs<T> {
  FIELDS(NormArgs<T>, const void* bias;)  // as the weight
};

template <typename T>
void run(const LayerNormArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width;
  const float eps = float(args.eps);
  norm_rows<T>(args, pass, work, [&](const T* x, T* y) {
    if (args.has_float_weight)
      normalise(x, static_cast<const float*>(args.weight), static_cast<const float*>(args.bias), y,
                width, eps);
    else
      normalise(x, static_cast<const T*>(args.weight), static_cast<const T*>(args.bias), y, width,
                eps);
  });
}

}  // namespace

OPERATOR(layer_norm_f32, LayerNormArgs<float>) { run<float>(args, pass, work); }
OPERATOR(layer_norm_bf16, LayerNormArgs<bf16>) { run<bf16>(args, pass, work); }
