// Functions of single items: sums, activations and their gates, soft caps.
#include "functions.h"
#include "operator.h"
#include "rows.h"

namespace {

constexpr int64_t ITEMS_AT_ONCE = 4096;

// The rows of a span are one run of items, wherever rows end: no item looks at another.
template <typename DoItems>
void for_each_run(int64_t width, const Args& args, const Pass& pass, Work& work, DoItems do_items) {
  const int64_t grain = width < ITEMS_AT_ONCE ? ITEMS_AT_ONCE / width : 1;
  Span span;
  while (work.take(row_count(args, pass), grain, span))
    do_items(span.begin * width, (span.end - span.begin) * width);
}

// in: x [rows][width]; out: y; i: width
template <typename T, typename Function>
void apply(const Args& args, const Pass& pass, Work& work, Function function) {
  for_each_run(args.i[0], args, pass, work, [&](int64_t start, int64_t items) {
    const T* x = static_cast<const T*>(args.in[0]) + start;
    T* y = static_cast<T*>(args.out[0]) + start;
    for_each_part(items, [&](int64_t d, int64_t count) {
      store_first(y + d, function(load_first(x + d, count)), count);
    });
  });
}

// in: x, y [rows][width]; out: their sum; i: width
template <typename T>
void add(const Args& args, const Pass& pass, Work& work) {
  for_each_run(args.i[0], args, pass, work, [&](int64_t start, int64_t items) {
    add_rows(static_cast<const T*>(args.in[0]) + start, static_cast<const T*>(args.in[1]) + start,
             static_cast<T*>(args.out[0]) + start, items);
  });
}

// in: gate and up side by side [rows][2 width]; out: function(gate) * up [rows][width]; i: width
template <typename T, typename Function>
void gate(const Args& args, const Pass& pass, Work& work, Function function) {
  const int64_t width = args.i[0], rows = row_count(args, pass);
  Span span;
  while (work.take(rows, ROWS_AT_ONCE, span)) {
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* gate = static_cast<const T*>(args.in[0]) + 2 * row * width;
      T* y = static_cast<T*>(args.out[0]) + row * width;
      for_each_part(width, [&](int64_t d, int64_t count) {
        const f32x16 up = load_first(gate + width + d, count);
        store_first(y + d, function(load_first(gate + d, count)) * up, count);
      });
    }
  }
}

// in: x [rows][width]; out: cap tanh(x / cap), which may be x; i: width; f: cap
void soft_cap(const Args& args, const Pass& pass, Work& work) {
  const float cap = float(args.f[0]);
  apply<float>(args, pass, work, [cap](f32x16 x) { return tanh(x / cap) * cap; });
}

}  // namespace

OPERATOR(add_f32) { add<float>(args, pass, work); }
OPERATOR(add_bf16) { add<bf16>(args, pass, work); }
OPERATOR(relu_f32) { apply<float>(args, pass, work, relu); }
OPERATOR(relu_bf16) { apply<bf16>(args, pass, work, relu); }
OPERATOR(gelu_f32) { apply<float>(args, pass, work, gelu); }
OPERATOR(gelu_bf16) { apply<bf16>(args, pass, work, gelu); }
OPERATOR(gelu_tanh_f32) { apply<float>(args, pass, work, gelu_tanh); }
OPERATOR(gelu_tanh_bf16) { apply<bf16>(args, pass, work, gelu_tanh); }
OPERATOR(gelu_tanh_mul_f32) { gate<float>(args, pass, work, gelu_tanh); }
OPERATOR(gelu_tanh_mul_bf16) { gate<bf16>(args, pass, work, gelu_tanh); }
OPERATOR(silu_mul_f32) { gate<float>(args, pass, work, silu); }
OPERATOR(silu_mul_bf16) { gate<bf16>(args, pass, work, silu); }
OPERATOR(soft_cap_f32) { soft_cap(args, pass, work); }
