// Norm, rotation, and storing latents; see kernels/cache_write/latent_write.py.
//
// Items are tokens: the latent and its rotated part go into the cache, the rotated parts of queries into q_rope. Each
// step rounds to the dtype of the model, as separate kernels would.
#include "operator.h"
#include "rows.h"
#include "token_slots.h"
#include "rotate.h"

namespace {

// y = x / sqrt(mean(x^2) + eps) * weight; infinities become NaN.
template <typename T>
void normalise(const T* x, const T* weight, T* y, int64_t width, float eps) {
  f32x16 squares{};
  for_each_part(width, [&](int64_t d, int64_t count) {
    const f32x16 v = load_first(x + d, count);
    squares = fma(v, v, squares);
  });
  const f32x16 scale = splat(1.0f / std::sqrt(sum(squares) / float(width) + eps));
  for_each_part(width, [&](int64_t d, int64_t count) {
    const f32x16 v = load_first(x + d, count) * scale;
    store_first(y + d, nan_if_infinite(v * load_first(weight + d, count)), count);
  });
}

template <typename T>
struct LatentWriteArgs : Args {
  FIELDS(Args,
         const T* q;                   // [T][N][H]
         const T* kv;                  // [T][L + 2 half]
         T* arena;                     // [blocks][S][L + 2 half]
         const int64_t* positions;     // [T]
         const int64_t* query_starts;  // [R + 1]
         const int64_t* block_tables;  // [R][table_stride]
         const T* norm_weight;         // [L]
         const float* cos;             // [T][half]
         const float* sin;
         T* q_rope;                    // [T][N][2 half]
         int64_t num_heads;            // N
         int64_t width;                // H
         int64_t latent_dim;           // L
         int64_t half;
         int64_t block_size;           // S
         int64_t table_stride;
         int64_t is_interleaved;
         double eps;)
};

template <typename T>
void run(const LatentWriteArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t heads = args.num_heads, width = args.width, latent = args.latent_dim, half = args.half;
  const int64_t row = latent + 2 * half;
  const bool is_interleaved = args.is_interleaved;
  const TokenSlots slots = slots_of(args);
  int64_t request = 0;  // of the token last asked for
  Span span;
  while (work.take(row_count(args, pass), 1, span)) {
    for (int64_t token = span.begin; token < span.end; token++) {
      request = slots.request_of(token, request);
      const float* cos = args.cos + token * half;
      const float* sin = args.sin + token * half;
      T* kept = args.arena + slots.slot(request, args.positions[token]) * row;
      const T* kv = args.kv + token * row;
      normalise(kv, args.norm_weight, kept, latent, float(args.eps));
      rotate<true>(kv + latent, cos, sin, half, is_interleaved, kept + latent);
      for (int64_t head = token * heads; head < (token + 1) * heads; head++) {
        const T* q = args.q + (head + 1) * width - 2 * half;
        rotate<false>(q, cos, sin, half, is_interleaved, args.q_rope + head * 2 * half);
      }
    }
  }
}

}  // namespace

OPERATOR(latent_write_f32, LatentWriteArgs<float>) { run<float>(args, pass, work); }
OPERATOR(latent_write_bf16, LatentWriteArgs<bf16>) { run<bf16>(args, pass, work); }
