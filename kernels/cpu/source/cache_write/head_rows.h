// What happens to the heads of new tokens before attention: norm over each head, and rotation.
//
// Items are heads of tokens, of which a token has N + 2K: queries, keys, values. Each step rounds to the
// dtype of the model, as the kernels it stands for would.
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

// Dimension i < half is turned with i + half.
template <typename T>
void turn(T* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t count = half - i;
    const f32x16 low = load_up_to(x + i, count), high = load_up_to(x + half + i, count);
    const f32x16 c = load_up_to(cos + i, count), s = load_up_to(sin + i, count);
    store_up_to(x + i, low * c - high * s, count);
    store_up_to(x + half + i, high * c + low * s, count);
  }
}

// The pass, and the heads that come from the product.
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

  // in: qkv, arena, positions, query starts, block tables, norms of queries and keys or nulls, cos, sin
  // out: q; i: N, K, H, S, items from one table to the next, R/2 or 0, Items, unit bytes, norms are float
  // f: eps of the norms
  HeadRows(const Args& args)
      : qkv(static_cast<const T*>(args.in[0])),
        q(static_cast<T*>(args.out[0])),
        positions(static_cast<const int64_t*>(args.in[2])),
        query_starts(static_cast<const int64_t*>(args.in[3])),
        block_tables(static_cast<const int64_t*>(args.in[4])),
        norms{args.in[5], args.in[6]},
        cos(static_cast<const float*>(args.in[7])),
        sin(static_cast<const float*>(args.in[8])),
        num_heads(args.i[0]),
        table_stride(args.i[4]),
        half(args.i[5]),
        norms_are_float(args.i[8]),
        eps(float(args.f[0])) {
    const Items items = Items(args.i[6]);
    arena = {static_cast<uint8_t*>(const_cast<void*>(args.in[1])), args.i[1], args.i[3], args.i[2],
             items, args.i[7], items == Items::WIDE ? int64_t(sizeof(T)) : 1};
  }

  int64_t heads_a_token() const { return num_heads + 2 * arena.num_heads; }

  // Item by item: queries become what attention takes; with keys and values `write(row, token, request, KV
  // head, is_value)` is called. `request` is that of the item before, to begin with any.
  template <typename Write>
  void prepare(int64_t item, int64_t& request, T* copy, Write write) const {
    const int64_t heads = heads_a_token(), width = arena.width, kv_heads = arena.num_heads;
    const int64_t token = item / heads, head = item % heads;
    if (token < query_starts[request]) request = 0;
    while (token >= query_starts[request + 1]) request++;
    T* x = head < num_heads ? q + (token * num_heads + head) * width : copy;
    memcpy(x, qkv + item * width, size_t(width) * sizeof(T));
    const int64_t kv_head = head - num_heads;
    if (kv_head < kv_heads) normalise_and_turn(x, token, kv_head >= 0);
    if (kv_head >= 0) write(x, token, request, kv_head % kv_heads, kv_head >= kv_heads);
  }

 private:
  // `is_key` is 0 or 1.
  void normalise_and_turn(T* x, int64_t token, int is_key) const {
    const int64_t width = arena.width;
    if (norms[is_key]) {
      if (norms_are_float)
        normalise(x, static_cast<const float*>(norms[is_key]), width, eps);
      else
        normalise(x, static_cast<const T*>(norms[is_key]), width, eps);
    }
    if (half) turn(x, cos + token * half, sin + token * half, half);
  }
};

}  // namespace
