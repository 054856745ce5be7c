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

template <typename T>
void run(const NormArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width;
  const float eps = float(args.eps);
  norm_rows<T>(args, pass, work, [&](const T* x, T* y) {
    if (args.has_float_weight)
      normalise(x, static_cast<const float*>(args.weight), y, width, eps);
    else
      normalise(x, static_cast<const T*>(args.weight), y, width, eps);
  });
}

}  // namespace

OPERATOR(rms_norm_f32, NormArgs<float>) { run<float>(args, pass, work); }
OPERATOR(rms_norm_bf16, NormArgs<bf16>) { run<bf16>(args, pass, work); }
