// Prepares the heads of new tokens for attention: norm over each head, and rotation.
//
// Items are heads of tokens; a token has N + 2K: queries, keys, values. Each step rounds to the dtype of the model, as
// separate kernels would.
#pragma once

#include <algorithm>

#include "arena.h"

namespace {

// y = x / sqrt(mean(x^2) + eps) * weight, in place; the weight may be wider than x (Gemma's 1 + w).
template <typename T, typename W>
void normalise(T* x, const W* weight, int64_t width, float eps) {
  f32x16 squares{};
  for (int64_t d = 0; d < width; d += 16) {
    const f32x16 v = load_up_to(x + d, width - d);
    squares = fma(v, v, squares);
  }
  const f32x16 scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + eps));
  for (int64_t d = 0; d < width; d += 16) {
    const int64_t count = width - d;
    store_up_to(x + d, load_up_to(x + d, count) * scale * load_up_to(weight + d, count), count);
  }
}

// Dimension i < half is rotated with i + half.
template <typename T>
void rotate(T* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t count = half - i;
    const f32x16 low = load_up_to(x + i, count), high = load_up_to(x + half + i, count);
    const f32x16 c = load_up_to(cos + i, count), s = load_up_to(sin + i, count);
    store_up_to(x + i, low * c - high * s, count);
    store_up_to(x + half + i, high * c + low * s, count);
  }
}

template <typename T>
struct HeadRowsArgs : Args {
  FIELDS(Args,
         const T* qkv;                 // [T][N + 2K][H]
         uint8_t* arena;               // see arena.h
         const int64_t* positions;     // [T]
         const int64_t* query_starts;  // [R + 1]
         const int64_t* block_tables;  // [R][table_stride]
         const void* q_norm;           // [H] of T or float, or null
         const void* k_norm;
         const float* cos;             // [T][half] or null
         const float* sin;
         T* q;                         // [T][N][H]
         int64_t num_heads;            // N
         int64_t num_kv_heads;         // K
         int64_t width;                // H
         int64_t block_size;           // S
         int64_t table_stride;
         int64_t half;                 // 0: no rotation
         int64_t items;                // Items of arena.h
         int64_t unit_bytes;
         int64_t has_float_norms;
         double eps;)
};

// The pass, and the heads from the qkv product.
template <typename T>
struct HeadRows {
  const T* qkv;  // [T][N + 2K][H]
  T* q;          // [T][N][H]
  Arena arena;
  const int64_t *positions, *query_starts, *block_tables;
  const void* norms[2];  // of queries and of keys, or null
  const float *cos, *sin;
  int64_t num_heads, table_stride, half;
  bool norms_are_float;
  float eps;

  explicit HeadRows(const HeadRowsArgs<T>& args)
      : qkv(args.qkv),
        q(args.q),
        arena(arena_of<T>(args)),
        positions(args.positions),
        query_starts(args.query_starts),
        block_tables(args.block_tables),
        norms{args.q_norm, args.k_norm},
        cos(args.cos),
        sin(args.sin),
        num_heads(args.num_heads),
        table_stride(args.table_stride),
        half(args.half),
        norms_are_float(args.has_float_norms),
        eps(float(args.eps)) {}

  int64_t heads_a_token() const { return num_heads + 2 * arena.num_heads; }

  // Processes items: queries are written for attention; for keys and values `write(row, token, request, KV head,
  // is_value)` is called. `request` is that of the previous item, a hint where to search.
  template <typename Write>
  void prepare(int64_t item, int64_t& request, T* copy, Write write) const {
    const int64_t heads = heads_a_token(), width = arena.width, kv_heads = arena.num_heads;
    const int64_t token = item / heads, head = item % heads;
    if (token < query_starts[request]) request = 0;
    while (token >= query_starts[request + 1]) request++;
    T* x = head < num_heads ? q + (token * num_heads + head) * width : copy;
    memcpy(x, qkv + item * width, size_t(width) * sizeof(T));
    const int64_t kv_head = head - num_heads;
    if (kv_head < kv_heads) normalise_and_rotate(x, token, kv_head >= 0);
    if (kv_head >= 0) write(x, token, request, kv_head % kv_heads, kv_head >= kv_heads);
  }

 private:
  // `is_key` is 0 or 1.
  void normalise_and_rotate(T* x, int64_t token, int is_key) const {
    const int64_t width = arena.width;
    if (norms[is_key]) {
      if (norms_are_float)
        normalise(x, static_cast<const float*>(norms[is_key]), width, eps);
      else
        normalise(x, static_cast<const T*>(norms[is_key]), width, eps);
    }
    if (half) rotate(x, cos + token * half, sin + token * half, half);
  }
};

}  // namespace
