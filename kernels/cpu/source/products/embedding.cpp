// Looks up rows of a table; see kernels/products/embedding.py.
#include "linear_tile.h"

namespace {

constexpr int64_t ROWS_AT_ONCE = 4;

template <typename T>
void scale_row(T* y, int64_t width, float scale) {
  for (int64_t i = 0; i < width; i++) narrow(to_float(y[i]) * scale, y + i);
}

template <typename T>
void copy_row(const T* table, int64_t row, int64_t width, T* y) {
  memcpy(y, table + row * width, size_t(width) * sizeof(T));
}

// A row of a packed table: in each step the items of all columns of a panel are adjacent.
template <typename T>
void gather_row(const T* packed, int64_t row, int64_t width, T* y) {
  constexpr int64_t DEPTH = Step<T>::DEPTH;
  const T* from = packed + row / PANEL * PANEL * width + row % PANEL * DEPTH;
  for (int64_t i = 0; i < width; i += DEPTH) {
    __builtin_prefetch(from + 32 * PANEL * DEPTH);
    memcpy(y + i, from, DEPTH * sizeof(T));
    from += PANEL * DEPTH;
  }
}

template <typename T>
struct EmbeddingArgs : Args {
  FIELDS(Args,
         const int64_t* ids;  // [rows]
         const T* table;      // [V][D], or packed
         T* y;                // [rows][D]
         int64_t width;       // D
         int64_t is_packed;
         double scale;)
};

template <typename T>
void embed(const EmbeddingArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t* ids = args.ids;
  const T* table = args.table;
  const int64_t width = args.width, rows = row_count(args, pass);
  const float scale = float(args.scale);
  Span span;
  while (work.take(rows, ROWS_AT_ONCE, span)) {
    for (int64_t row = span.begin; row < span.end; row++) {
      T* y = args.y + row * width;
      if (args.is_packed)
        gather_row(table, ids[row], width, y);
      else
        copy_row(table, ids[row], width, y);
      if (scale != 1.0f) scale_row(y, width, scale);
    }
  }
}

}  // namespace

OPERATOR(embedding_f32, EmbeddingArgs<float>) { embed<float>(args, pass, work); }
OPERATOR(embedding_bf16, EmbeddingArgs<bf16>) { embed<bf16>(args, pass, work); }
