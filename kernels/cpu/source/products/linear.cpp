// Matrix products with packed weights; see kernels/products/packed_weight.py.
//
// The work is cut into blocks of rows, and their panels.
#include "linear_finish.h"
#include "linear_panels.h"

namespace {

template <typename T>
Factors<T> factors_of(const Args& args, const Pass& pass) {
  return {static_cast<const T*>(args.in[0]), args.i[2], static_cast<const T*>(args.in[1]),
          row_count(args, pass), args.i[1] / Step<T>::DEPTH};
}

template <typename T, typename Finish>
void multiply(const Factors<T>& factors, Work& work, const Finish& finish) {
  if (factors.num_rows == 0) return;
  const int64_t num_panels = finish.num_panels();
  const int64_t row_bytes = factors.num_steps * Step<T>::DEPTH * int64_t(sizeof(T));
  const int64_t block = rows_of_block(factors.num_rows, row_bytes);
  const int64_t num_blocks = (factors.num_rows + block - 1) / block;
  const int64_t num_items = num_blocks * num_panels;
  Span items;
  while (work.take(num_items, grain_of(num_items, work), items)) {
    while (items.begin < items.end) {
      const int64_t first = items.begin / num_panels * block, panel = items.begin % num_panels;
      const int64_t last = std::min(num_panels, panel + items.end - items.begin);
      multiply_panels(factors, {first, std::min(first + block, factors.num_rows)}, {panel, last},
                      finish);
      items.begin += last - panel;
    }
  }
}

template <typename T, typename Out>
void linear(const Args& args, const Pass& pass, Work& work) {
  const AddBias<T, Out> finish{static_cast<const T*>(args.in[2]), static_cast<Out*>(args.out[0]),
                               args.i[0]};
  multiply(factors_of<T>(args, pass), work, finish);
}

template <typename T>
void gated_linear(const Args& args, const Pass& pass, Work& work) {
  const T* bias = static_cast<const T*>(args.in[2]);
  T* y = static_cast<T*>(args.out[0]);
  if (args.i[3])
    multiply(factors_of<T>(args, pass), work, Gate<T, gelu_tanh>{bias, y, args.i[0] / 2});
  else
    multiply(factors_of<T>(args, pass), work, Gate<T, silu>{bias, y, args.i[0] / 2});
}

}  // namespace

// in: x [rows][K], weight packed, bias [N] or null; out: y [rows][N]; i: N, K, items from row to row of x
OPERATOR(linear_f32) { linear<float, float>(args, pass, work); }
OPERATOR(linear_bf16) { linear<bf16, bf16>(args, pass, work); }

// The same; y is float.
OPERATOR(logits_f32) { linear<float, float>(args, pass, work); }
OPERATOR(logits_bf16) { linear<bf16, float>(args, pass, work); }

// The same of a gated weight; y is [rows][N / 2]; i[3]: 0 for silu, 1 for gelu in its tanh form
OPERATOR(gated_linear_f32) { gated_linear<float>(args, pass, work); }
OPERATOR(gated_linear_bf16) { gated_linear<bf16>(args, pass, work); }
