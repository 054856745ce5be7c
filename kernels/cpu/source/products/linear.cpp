// Matrix products with packed weights; see kernels/products/packed_weight.py.
//
// The work is divided into blocks of rows, and these into panels.
#include "linear_finish.h"
#include "linear_panels.h"

namespace {

template <typename T, typename Out>
struct LinearArgs : Args {
  FIELDS(Args,
         const T* x;        // [rows][width]
         const T* weight;   // packed
         const T* bias;     // [num_outputs] or null
         Out* y;            // [rows][num_outputs], or half as many behind a gate
         int64_t num_outputs;
         int64_t width;
         int64_t stride;)   // items from row to row of x
};

template <typename T>
struct GatedLinearArgs : LinearArgs<T, T> {
  using Base = LinearArgs<T, T>;
  FIELDS(Base, int64_t gating;)  // 0 for silu, 1 for gelu in its tanh form
};

template <typename T, typename Out>
Factors<T> factors_of(const LinearArgs<T, Out>& args, const Pass& pass) {
  return {args.x, args.stride, args.weight, row_count(args, pass), args.width / Step<T>::DEPTH};
}

template <typename T, typename Finish>
void multiply(const Factors<T>& factors, Work& work, const Finish& finish) {
  if (factors.num_rows == 0) return;
  const int64_t num_panels = finish.num_panels();
  const int64_t row_bytes = factors.num_steps * Step<T>::DEPTH * int64_t(sizeof(T));
  const int64_t block = rows_of_block(factors.num_rows, row_bytes);
  const int64_t num_blocks = (factors.num_rows + block - 1) / block;
  const int64_t num_items = num_blocks * num_panels;
  const int64_t item_ns = ns_of_panel<T>(std::min(block, factors.num_rows), factors.num_steps);
  Span items;
  while (work.take(num_items, short_grain_of(num_items, work, item_ns), items)) {
    while (items.begin < items.end) {
      const int64_t first = items.begin / num_panels * block, panel = items.begin % num_panels;
      const int64_t last = std::min(num_panels, panel + items.end - items.begin);
      multiply_panels(factors, {first, std::min(first + block, factors.num_rows)}, {panel, last},
                      last < num_panels && !work.ends_part(), finish);
      items.begin += last - panel;
    }
  }
}

template <typename T, typename Out>
void linear(const LinearArgs<T, Out>& args, const Pass& pass, Work& work) {
  const AddBias<T, Out> finish{args.bias, args.y, args.num_outputs};
  multiply(factors_of(args, pass), work, finish);
}

template <typename T>
void gated_linear(const GatedLinearArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.num_outputs / 2;
  if (args.gating)
    multiply(factors_of(args, pass), work, Gate<T, gelu_tanh>{args.bias, args.y, width});
  else
    multiply(factors_of(args, pass), work, Gate<T, silu>{args.bias, args.y, width});
}

}  // namespace

OPERATOR(linear_f32, LinearArgs<float, float>) { linear(args, pass, work); }
OPERATOR(linear_bf16, LinearArgs<bf16, bf16>) { linear(args, pass, work); }

OPERATOR(logits_f32, LinearArgs<float, float>) { linear(args, pass, work); }
OPERATOR(logits_bf16, LinearArgs<bf16, float>) { linear(args, pass, work); }

OPERATOR(gated_linear_f32, GatedLinearArgs<float>) { gated_linear(args, pass, work); }
OPERATOR(gated_linear_bf16, GatedLinearArgs<bf16>) { gated_linear(args, pass, work); }
