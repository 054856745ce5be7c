// Norm, rotation, and storing latents; see kernels/cache_write/latent_write.py.
//
// Items are tokens: the latent and what turns of it go into the cache, what turns of the queries into q_rope.
// Each step rounds to the dtype of the model, as the kernels it stands for would.
#include "operator.h"
#include "rows.h"
#include "token_slots.h"
#include "turn.h"

namespace {

// y = x / sqrt(mean(x^2) + eps) * weight, what is not finite being NaN.
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

// in: q [T][N][H], kv [T][L + 2 half], arena, positions, query starts, block tables, norm [L], cos, sin
// out: q_rope [T][N][2 half]
// i: N, H, L, half, S, items from one table to the next, is interleaved; f: eps of the norm
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const int64_t heads = args.i[0], width = args.i[1], latent = args.i[2], half = args.i[3];
  const int64_t row = latent + 2 * half;
  const bool is_interleaved = args.i[6];
  const auto* positions = static_cast<const int64_t*>(args.in[3]);
  const TokenSlots slots{positions, static_cast<const int64_t*>(args.in[4]),
                         static_cast<const int64_t*>(args.in[5]), args.i[4], args.i[5]};
  T* arena = static_cast<T*>(const_cast<void*>(args.in[2]));
  int64_t request = 0;  // of the token last asked for
  Span span;
  while (work.take(row_count(args, pass), 1, span)) {
    for (int64_t token = span.begin; token < span.end; token++) {
      request = slots.request_of(token, request);
      const float* cos = static_cast<const float*>(args.in[7]) + token * half;
      const float* sin = static_cast<const float*>(args.in[8]) + token * half;
      T* kept = arena + slots.slot(request, positions[token]) * row;
      const T* kv = static_cast<const T*>(args.in[1]) + token * row;
      normalise(kv, static_cast<const T*>(args.in[6]), kept, latent, float(args.f[0]));
      turn<true>(kv + latent, cos, sin, half, is_interleaved, kept + latent);
      for (int64_t head = token * heads; head < (token + 1) * heads; head++) {
        const T* q = static_cast<const T*>(args.in[0]) + (head + 1) * width - 2 * half;
        turn<false>(q, cos, sin, half, is_interleaved, static_cast<T*>(args.out[0]) + head * 2 * half);
      }
    }
  }
}

}  // namespace

OPERATOR(latent_write_f32) { run<float>(args, pass, work); }
OPERATOR(latent_write_bf16) { run<bf16>(args, pass, work); }
