// Norm over each head, rotation, and storing K and V; see kernels/rope_kv_write.py.
//
// Items are heads of tokens, of which a token has N + 2K: queries, keys, values. Each step rounds to the
// dtype of the model, as the kernels it stands for would.
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

f32x16 finite(f32x16 x) {
  const i32x16 is_finite = (i32x16)((u32x16)x & 0x7F800000) != 0x7F800000;
  return is_finite ? x : f32x16{};
}

float largest_size(const float* x, int64_t width) {
  float size = 0;
  for (int64_t d = 0; d < width; d++) size = std::max(size, std::fabs(x[d]));
  return size;
}

// x in 8 bits; see kernels/kv_quantize.py.
void quantize(const float* x, int64_t width, Items kind, uint8_t* items, float* scale) {
  const float largest = kind == Items::INT8 ? 127.0f : 448.0f;
  *scale = largest_size(x, width) / largest;
  const f32x16 divisor = splat(*scale > 0 ? *scale : 1.0f);
  for (int64_t d = 0; d < width; d += 16) {
    const int64_t count = width - d;
    f32x16 y = load_up_to(x + d, count) / divisor;  // may pass the largest item by a rounding
    y = y < splat(largest) ? y : splat(largest);
    y = y > splat(-largest) ? y : splat(-largest);
    const u8x16 packed = kind == Items::INT8 ? to_int8(y) : to_e4m3(y);
    memcpy(items + d, &packed, size_t(std::min<int64_t>(16, count)));
  }
}

template <typename T>
struct Problem {
  const T* qkv;  // [T][N + 2K][H]
  T* q;          // [T][N][H]
  Arena arena;
  const int64_t *positions, *query_starts, *block_tables;
  const void* norms[2];  // of queries and of keys, or null
  const float *cos, *sin;
  int64_t num_heads, table_stride, half;
  bool norms_are_float;
  float eps;

  Problem(const Args& args)
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

  // `is_key` is 0 or 1.
  void prepare(T* x, int64_t token, int is_key) const {
    const int64_t width = arena.width;
    if (norms[is_key]) {
      if (norms_are_float)
        normalise(x, static_cast<const float*>(norms[is_key]), width, eps);
      else
        normalise(x, static_cast<const T*>(norms[is_key]), width, eps);
    }
    if (half) turn(x, cos + token * half, sin + token * half, half);
  }

  // `wide` is room for a row of floats.
  void write(const T* x, int64_t token, int64_t request, int64_t head, bool is_value,
             float* wide) const {
    const int64_t block = positions[token] / arena.block_size, slot = positions[token] % arena.block_size;
    uint8_t* unit = arena.unit(block_tables[request * table_stride + block], head);
    uint8_t* row = arena.row(unit, is_value, slot);
    const int64_t width = arena.width;
    for (int64_t d = 0; d < width; d += 16) {
      const int64_t count = width - d;
      const f32x16 v = finite(load_up_to(x + d, count));
      if (arena.items == Items::WIDE)
        store_up_to(reinterpret_cast<T*>(row) + d, v, count);
      else
        store_up_to(wide + d, v, count);
    }
    if (arena.items != Items::WIDE)
      quantize(wide, width, arena.items, row, arena.scale(unit, is_value, slot));
  }
};

// in: qkv, arena, positions, query starts, block tables, norms of queries and keys or nulls, cos, sin
// out: q; i: N, K, H, S, items from one table to the next, R/2 or 0, Items, unit bytes, norms are float
// f: eps of the norms
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const Problem<T> problem(args);
  const int64_t width = problem.arena.width, kv_heads = problem.arena.num_heads;
  const int64_t heads = problem.num_heads + 2 * kv_heads, count = row_count(args, pass) * heads;
  float* wide = static_cast<float*>(work.scratch(size_t(width) * (sizeof(float) + sizeof(T))));
  T* copy = reinterpret_cast<T*>(wide + width);
  int64_t request = 0;  // of the token last asked for
  Span span;
  while (work.take(count, grain_of(count, work), span)) {
    for (int64_t item = span.begin; item < span.end; item++) {
      const int64_t token = item / heads, head = item % heads;
      if (token < problem.query_starts[request]) request = 0;
      while (token >= problem.query_starts[request + 1]) request++;
      const T* from = problem.qkv + item * width;
      T* query = problem.q + (token * problem.num_heads + head) * width;
      T* x = head < problem.num_heads ? query : copy;
      memcpy(x, from, size_t(width) * sizeof(T));
      const int64_t kv_head = head - problem.num_heads;
      if (kv_head < kv_heads) problem.prepare(x, token, kv_head >= 0);
      if (kv_head >= 0)
        problem.write(x, token, request, kv_head % kv_heads, kv_head >= kv_heads, wide);
    }
  }
}

}  // namespace

OPERATOR(rope_kv_write_f32) { run<float>(args, pass, work); }
OPERATOR(rope_kv_write_bf16) { run<bf16>(args, pass, work); }
