// Rows of a table, by number; see kernels/products/embedding.py.
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

// Of a packed table: every step has its items of all columns of a panel side by side.
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

// in: ids [rows] int64, table [V][D]; out: y [rows][D]; i: D, is packed; f: scale
template <typename T>
void embed(const Args& args, const Pass& pass, Work& work) {
  const int64_t* ids = static_cast<const int64_t*>(args.in[0]);
  const T* table = static_cast<const T*>(args.in[1]);
  const int64_t width = args.i[0], rows = row_count(args, pass);
  const float scale = float(args.f[0]);
  Span span;
  while (work.take(rows, ROWS_AT_ONCE, span)) {
    for (int64_t row = span.begin; row < span.end; row++) {
      T* y = static_cast<T*>(args.out[0]) + row * width;
      if (args.i[1])
        gather_row(table, ids[row], width, y);
      else
        copy_row(table, ids[row], width, y);
      if (scale != 1.0f) scale_row(y, width, scale);
    }
  }
}

}  // namespace

OPERATOR(embedding_f32) { embed<float>(args, pass, work); }
OPERATOR(embedding_bf16) { embed<bf16>(args, pass, work); }
