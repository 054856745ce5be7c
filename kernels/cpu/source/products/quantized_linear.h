// Common parts of products with int8 and int4 weights: the division of work, and prefetching.
//
//   item      one panel of weights (32 outputs) and up to 256 rows
//   tile      as many rows as have their sums in registers
//
// The weights of a panel come from memory for its first tile, and from the cache for the others; the first two tiles
// prefetch the next panel meanwhile.
#pragma once

#include <algorithm>

#include "linear_finish.h"
#include "quantized_panel.h"

constexpr int64_t ROWS_OF_ITEM = 256;
static_assert(ROWS_OF_ITEM == AMX_BLOCK_ROWS);

struct QuantizedWeights {
  const uint8_t* panels;
  const float* scales;  // null where panels have them
};

typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint8_t Bytes __attribute__((vector_size(LANES * 4)));

static inline int32_t four_bytes(const int8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return four;
}

static inline Bytes load_bytes(const uint8_t* p) {
  Bytes v;
  memcpy(&v, p, sizeof v);
  return v;
}

// sums + u . q, four bytes per lane: u unsigned, q four signed bytes that are the same in all lanes. Exact on every
// CPU.
static inline Ints dot(Ints sums, Bytes u, int32_t q) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)u, _mm512_set1_epi32(q));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i q0 = _mm256_set1_epi32((int8_t(q) & 0xFFFF) | int8_t(q >> 16) * 65536);
  const __m256i q1 = _mm256_set1_epi32((int8_t(q >> 8) & 0xFFFF) | (q >> 24) * 65536);
  const __m256i even = _mm256_and_si256((__m256i)u, _mm256_set1_epi16(255));
  const __m256i odd = _mm256_srli_epi16((__m256i)u, 8);
  return sums + (Ints)_mm256_madd_epi16(even, q0) + (Ints)_mm256_madd_epi16(odd, q1);
#else
  for (int i = 0; i < 4; i++)
    sums += (Ints)((Words)u >> (8 * i) & 0xFFu) * int32_t(int8_t(q >> (8 * i)));
  return sums;
#endif
}

static inline Lanes to_floats(Ints v) { return __builtin_convertvector(v, Lanes); }

// Which lines of the weights to prefetch while those of a panel are read.
enum class PrefetchLines { NONE, ALL, HALF };

// Prefetch distances for panels that are read only once. The few rows that AVX-512 vectors multiply faster than memory
// delivers the panel do not prefetch at all, as the hardware prefetcher does more than they could. More rows take too
// long per step for it, and must prefetch early.
constexpr int64_t STREAM_AHEAD_BYTES = 2304, EARLY_BYTES = 8192, NO_PREFETCH_ROWS = 4;

// Prefetches all lines of a step, or one half of them.
template <PrefetchLines PREFETCH, int LINES>
static inline void prefetch(const uint8_t* next) {
  constexpr int HALF = (LINES + 1) / 2;
  constexpr int COUNT = PREFETCH == PrefetchLines::ALL ? LINES : PREFETCH == PrefetchLines::HALF ? HALF : 0;
  for (int i = 0; i < COUNT; i++) __builtin_prefetch(next + 64 * i, 0, 2);
}

// Calls multiply_tile<ROWS, PREFETCH>() of a `product` for the number of rows.
template <PrefetchLines PREFETCH, int ROWS, typename Product>
static inline void run_tile_of(const Product& product, Span rows, int64_t panel, const uint8_t* next,
                               float* sums) {
  if constexpr (ROWS > 1) {
    if (rows.end - rows.begin < ROWS)
      return run_tile_of<PREFETCH, ROWS - 1>(product, rows, panel, next, sums);
  }
  product.template multiply_tile<ROWS, PREFETCH>(rows.begin, panel, next, sums);
}

template <typename Product>
static inline void run_tile_of(const Product& product, PrefetchLines lines, Span rows, int64_t panel,
                               const uint8_t* next, float* sums) {
  constexpr int MOST = Product::MAX_ROWS;
  using enum PrefetchLines;
  if (lines == ALL) return run_tile_of<ALL, MOST>(product, rows, panel, next, sums);
  if (lines == HALF) return run_tile_of<HALF, MOST>(product, rows, panel, next, sums);
  run_tile_of<NONE, MOST>(product, rows, panel, next, sums);
}

// `Product` has weights, panel_bytes, tile_rows() of at most MOST_ROWS, LINES (of a step), multiplies_by_tiles(rows) and
//     multiply(lines, rows, panel, next, sums [rows][32])
// for up to `tile_rows` rows, which prefetches from `next` on as it reads the panel, step by step.
template <typename Product, typename Finish>
class Multiplication {
 public:
  Multiplication(const Product& product, const Finish& finish) : product_(product), finish_(finish) {}

  void run(int64_t num_rows, Work& work) const {
    const int64_t num_panels = finish_.num_panels();
    const int64_t num_items = num_panels * ((num_rows + ROWS_OF_ITEM - 1) / ROWS_OF_ITEM);
    Span items;
    const int64_t item_ns = product_.panel_bytes * std::clamp<int64_t>(num_rows, 16, ROWS_OF_ITEM) / 256;
    while (work.take(num_items, short_grain_of(num_items, work, item_ns), items)) {
      for (int64_t item = items.begin; item < items.end; item++) {
        const int64_t first = item / num_panels * ROWS_OF_ITEM;
        const Span rows{first, std::min(first + ROWS_OF_ITEM, num_rows)};
        const bool is_last = item + 1 == items.end && (work.ends_part() || item % num_panels + 1 == num_panels);
        run_item(rows, item % num_panels, is_last);
      }
    }
  }

  // Multiplies all of some rows by some panels, on this thread.
  void run(Span rows, Span panels) const {
    for (int64_t panel = panels.begin; panel < panels.end; panel++)
      run_item(rows, panel, panel + 1 == panels.end);
  }

 private:
  void run_item(Span rows, int64_t panel, bool is_last) const {
    using enum PrefetchLines;
    const uint8_t* weights = product_.weights + panel * product_.panel_bytes;
    const uint8_t* next = weights + product_.panel_bytes;
    const int64_t at_once = Product::tile_rows();
    if (at_once == ROWS_OF_ITEM && rows.end - rows.begin > AMX_ROWS) {  // by tiles: the first ask for the next panel
      for (int64_t row = rows.begin; row < rows.end; row += at_once)
        run_tile(is_last || row > rows.begin ? NONE : ALL, {row, std::min(row + at_once, rows.end)}, panel, next);
      return;
    }
    if (rows.end - rows.begin <= at_once) {
      const bool is_by_vectors = LANES == 16 && !Product::multiplies_by_tiles(rows.end - rows.begin);
      if (is_by_vectors && rows.end - rows.begin <= NO_PREFETCH_ROWS) return run_tile(NONE, rows, panel, next);
      const int64_t ahead = is_by_vectors ? EARLY_BYTES : STREAM_AHEAD_BYTES;
      return run_tile(ALL, rows, panel, weights + ahead);
    }
    for (int64_t row = rows.begin, tile = 0; row < rows.end; row += at_once, tile++) {
      const Span of_tile{row, std::min(row + at_once, rows.end)};
      if (is_last || tile >= 2)
        run_tile(NONE, of_tile, panel, next);
      else
        run_tile(HALF, of_tile, panel, next + tile * (Product::LINES / 2) * 64);
    }
  }

  // Not inlined, as it is called from several places.
  __attribute__((noinline)) void run_tile(PrefetchLines lines, Span rows, int64_t panel, const uint8_t* next) const {
    alignas(64) float sums[Product::MOST_ROWS * PANEL];
    for (int64_t row = rows.begin; row < rows.end; row++) prefetch_outputs(finish_, row, panel);
    product_.multiply(lines, rows, panel, next, sums);
    for (int64_t row = rows.begin; row < rows.end; row++)
      finish_(row, panel, sums + (row - rows.begin) * PANEL);
  }

  const Product& product_;
  const Finish& finish_;
};

template <typename T, typename Out>
struct QuantizedLinearArgs : Args {
  FIELDS(Args,
         uint8_t* x;              // [rows][row_bytes] in eight bits; see int8_rows.h
         const uint8_t* weights;  // panels
         const float* scales;     // or null
         const T* bias;           // [num_outputs] or null
         Out* y;                  // [rows][num_outputs], or half as many behind a gate
         int64_t num_outputs;
         int64_t padded_width;
         int64_t row_bytes;)
};

template <typename T>
struct QuantizedGatedArgs : QuantizedLinearArgs<T, T> {
  using Base = QuantizedLinearArgs<T, T>;
  FIELDS(Base, int64_t gating;)  // 0 for silu, 1 for gelu in its tanh form
};

// `Product` is constructed from (rows, weights).
template <typename Product, typename T, typename Out>
static inline Product product_of(const QuantizedLinearArgs<T, Out>& args) {
  return {Int8Rows{args.x, args.padded_width, args.row_bytes}, QuantizedWeights{args.weights, args.scales}};
}

template <typename Product, typename T, typename Out>
static inline void quantized_linear(const QuantizedLinearArgs<T, Out>& args, const Pass& pass, Work& work) {
  const Product product = product_of<Product>(args);
  const AddBias<T, Out> finish{args.bias, args.y, args.num_outputs};
  Multiplication(product, finish).run(row_count(args, pass), work);
}

template <typename Product, typename T>
static inline void quantized_gated_linear(const QuantizedGatedArgs<T>& args, const Pass& pass, Work& work) {
  const Product product = product_of<Product>(args);
  const int64_t width = args.num_outputs / 2;
  if (args.gating)
    Multiplication(product, Gate<T, gelu_tanh>{args.bias, args.y, width}).run(row_count(args, pass), work);
  else
    Multiplication(product, Gate<T, silu>{args.bias, args.y, width}).run(row_count(args, pass), work);
}
