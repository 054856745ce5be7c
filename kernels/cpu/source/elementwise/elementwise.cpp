// Elementwise functions: sums, activations and their gates, soft caps.
#include "functions.h"
#include "operator.h"
#include "rows.h"

namespace {

constexpr int64_t ITEMS_AT_ONCE = 4096;

template <typename T>
struct ItemsArgs : Args {
  FIELDS(Args,
         const T* x;  // [rows][width]
         T* y;        // the same, and may be x
         int64_t width;)
};

template <typename T>
struct AddArgs : ItemsArgs<T> {
  FIELDS(ItemsArgs<T>, const T* more;)  // as x
};

struct SoftCapArgs : ItemsArgs<float> {
  FIELDS(ItemsArgs<float>, double cap;)
};

// The rows of a span are processed as one sequence of items, as items are independent.
template <typename DoItems>
void for_each_run(int64_t width, const Args& args, const Pass& pass, Work& work, DoItems do_items) {
  const int64_t grain = width < ITEMS_AT_ONCE ? ITEMS_AT_ONCE / width : 1;
  Span span;
  while (work.take(row_count(args, pass), grain, span))
    do_items(span.begin * width, (span.end - span.begin) * width);
}

// y = function(x)
template <typename T, typename Function>
void apply(const ItemsArgs<T>& args, const Pass& pass, Work& work, Function function) {
  for_each_run(args.width, args, pass, work, [&](int64_t start, int64_t items) {
    const T* x = args.x + start;
    T* y = args.y + start;
    for_each_part(items, [&](int64_t d, int64_t count) {
      store_first(y + d, function(load_first(x + d, count)), count);
    });
  });
}

template <typename T>
void add(const AddArgs<T>& args, const Pass& pass, Work& work) {
  for_each_run(args.width, args, pass, work, [&](int64_t start, int64_t items) {
    add_rows(args.x + start, args.more + start,
             args.y + start, items);
  });
}

// x [rows][2 width] is gate and up concatenated; y = function(gate) * up
template <typename T, typename Function>
void gate(const ItemsArgs<T>& args, const Pass& pass, Work& work, Function function) {
  const int64_t width = args.width, rows = row_count(args, pass);
  Span span;
  while (work.take(rows, ROWS_AT_ONCE, span)) {
    for (int64_t row = span.begin; row < span.end; row++) {
      const T* gate = args.x + 2 * row * width;
      T* y = args.y + row * width;
      for_each_part(width, [&](int64_t d, int64_t count) {
        const f32x16 up = load_first(gate + width + d, count);
        store_first(y + d, function(load_first(gate + d, count)) * up, count);
      });
    }
  }
}

// y = cap tanh(x / cap)
void soft_cap(const SoftCapArgs& args, const Pass& pass, Work& work) {
  const float cap = float(args.cap);
  apply<float>(args, pass, work, [cap](f32x16 x) { return tanh(x / cap) * cap; });
}

}  // namespace

OPERATOR(add_f32, AddArgs<float>) { add<float>(args, pass, work); }
OPERATOR(add_bf16, AddArgs<bf16>) { add<bf16>(args, pass, work); }
OPERATOR(relu_f32, ItemsArgs<float>) { apply<float>(args, pass, work, relu); }
OPERATOR(relu_bf16, ItemsArgs<bf16>) { apply<bf16>(args, pass, work, relu); }
OPERATOR(gelu_f32, ItemsArgs<float>) { apply<float>(args, pass, work, gelu); }
OPERATOR(gelu_bf16, ItemsArgs<bf16>) { apply<bf16>(args, pass, work, gelu); }
OPERATOR(gelu_tanh_f32, ItemsArgs<float>) { apply<float>(args, pass, work, gelu_tanh); }
OPERATOR(gelu_tanh_bf16, ItemsArgs<bf16>) { apply<bf16>(args, pass, work, gelu_tanh); }
OPERATOR(gelu_tanh_mul_f32, ItemsArgs<float>) { gate<float>(args, pass, work, gelu_tanh); }
OPERATOR(gelu_tanh_mul_bf16, ItemsArgs<bf16>) { gate<bf16>(args, pass, work, gelu_tanh); }
OPERATOR(silu_mul_f32, ItemsArgs<float>) { gate<float>(args, pass, work, silu); }
OPERATOR(silu_mul_bf16, ItemsArgs<bf16>) { gate<bf16>(args, pass, work, silu); }
OPERATOR(soft_cap_f32, SoftCapArgs) { soft_cap(args, pass, work); }
