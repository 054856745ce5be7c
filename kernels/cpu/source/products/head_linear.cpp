// Products of each head with a matrix of its own; see kernels/products/head_linear.py.
//
// An item is one panel of a head and a block of rows. A block is as large as the L2 cache holds, and is multiplied by
// all panels before the next one.
#include <algorithm>

#include "linear_finish.h"

namespace {

constexpr int64_t X_BYTES = 256 * 1024;  // of a block of rows, all heads

template <typename T>
struct HeadLinearArgs : Args {
  FIELDS(Args,
         const T* x;            // [rows][N][I]
         const T* panels;       // of each head
         T* y;                  // [rows][N][O]
         int64_t num_heads;     // N
         int64_t num_outputs;   // O
         int64_t width;         // I
         int64_t token_stride;  // items of x from token to token
         int64_t head_stride;)
};

template <typename T>
struct Heads {
  const T *x, *panels;
  T* y;
  int64_t num_heads, num_rows, num_steps, token_stride, head_stride;

  explicit Heads(const HeadLinearArgs<T>& args)
      : x(args.x),
        panels(args.panels),
        y(args.y),
        num_heads(args.num_heads),
        num_rows(args.num_outputs),
        num_steps(args.width / Step<T>::DEPTH),
        token_stride(args.token_stride),
        head_stride(args.head_stride) {}

  int64_t num_panels() const { return (num_rows + PANEL - 1) / PANEL; }

  void multiply(Span tokens, int64_t head, int64_t panel) const {
    alignas(64) float sums[MOST_TILE_ROWS * PANEL];
    const int64_t at_once = tile_rows<T>();
    const int64_t column = panel * PANEL, panel_items = num_steps * PANEL * Step<T>::DEPTH;
    const T* weights = panels + (head * num_panels() + panel) * panel_items;
    for (int64_t token = tokens.begin; token < tokens.end; token += at_once) {
      const int64_t count = std::min(tokens.end - token, at_once);
      const Prefetch<1> ahead{reinterpret_cast<const char*>(weights + panel_items), STEP_BYTES};
      multiply_rows(count, x + token * token_stride + head * head_stride, token_stride, weights,
                    num_steps, ahead, sums);
      for (int64_t i = 0; i < count; i++)
        store_row(y + ((token + i) * num_heads + head) * num_rows + column, sums + i * PANEL,
                  num_rows - column);
    }
  }

  static void store_row(T* out, const float* sums, int64_t count) {
    store_up_to(out, load(sums), count);
    store_up_to(out + 16, load(sums + 16), count - 16);
  }
};

template <typename T>
void run(const HeadLinearArgs<T>& args, const Pass& pass, Work& work) {
  const Heads<T> heads(args);
  const int64_t rows = row_count(args, pass), num_panels = heads.num_panels();
  const int64_t row_bytes = heads.num_steps * Step<T>::DEPTH * int64_t(sizeof(T));
  const int64_t block = std::max(X_BYTES / row_bytes, tile_rows<T>());
  const int64_t num_blocks = (rows + block - 1) / block;
  const int64_t in_block = heads.num_heads * num_panels, total = num_blocks * in_block;
  Span items;
  while (work.take(total, grain_of(total, work), items)) {
    for (int64_t item = items.begin; item < items.end; item++) {
      const int64_t first = item / in_block * block, rest = item % in_block;
      heads.multiply({first, std::min(first + block, rows)}, rest / num_panels, rest % num_panels);
    }
  }
}

}  // namespace

OPERATOR(head_linear_f32, HeadLinearArgs<float>) { run<float>(args, pass, work); }
OPERATOR(head_linear_bf16, HeadLinearArgs<bf16>) { run<bf16>(args, pass, work); }
