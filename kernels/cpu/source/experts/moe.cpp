// MoE products with packed weights; see moe.h for the division of work and the arguments.
#include "moe.h"

#include "rows.h"

namespace {

template <typename T>
struct WideRows {
  const T* x;
  const T* weights;  // [E][panels][K / depth][32][depth]
  int64_t width;     // K
  int64_t num_panels;
  int64_t row_bytes;

  WideRows(const ExpertsArgs<T>& args, int64_t num_panels)
      : x(static_cast<const T*>(args.x)),
        weights(static_cast<const T*>(args.weights)),
        width(args.width),
        num_panels(num_panels),
        row_bytes(width * int64_t(sizeof(T))) {}

  const T* at(int64_t row) const { return x + row * width; }

  void gather(int64_t token, const float* share, void* into) const {
    if (!share) {
      memcpy(into, at(token), size_t(row_bytes));
      return;
    }
    for_each_part(width, [&](int64_t k, int64_t count) {
      const f32x16 v = load_first(at(token) + k, count) * *share;
      store_first(static_cast<T*>(into) + k, v, count);
    });
  }

  template <typename Finish>
  void multiply(int64_t expert, const void* rows, int64_t num_rows, Span panels,
                const Finish& finish) const {
    const Factors<T> factors{static_cast<const T*>(rows), width,
                             weights + expert * num_panels * PANEL * width, num_rows,
                             width / Step<T>::DEPTH};
    multiply_panels(factors, {0, num_rows}, panels, false, finish);
  }
};

template <typename T>
void gate_up(const GateUpArgs<T>& args, Work& work) {
  const int64_t half = PANEL / 2;
  moe_gate_up<WideRows<T>, T>(args, {args, (args.num_outputs / 2 + half - 1) / half}, work);
}

template <typename T>
void down(const DownArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t num_panels = (args.num_outputs + PANEL - 1) / PANEL;
  moe_down<WideRows<T>, T>(args, {args, num_panels}, row_count(args, pass), work);
}

}  // namespace

OPERATOR(moe_gate_up_f32, GateUpArgs<float>) { gate_up<float>(args, work); }
OPERATOR(moe_gate_up_bf16, GateUpArgs<bf16>) { gate_up<bf16>(args, work); }

OPERATOR(moe_down_f32, DownArgs<float>) { down<float>(args, pass, work); }
OPERATOR(moe_down_bf16, DownArgs<bf16>) { down<bf16>(args, pass, work); }
