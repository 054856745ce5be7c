// Rotation of the index's queries and keys, and storing the keys; see kernels/cache_write/index_write.py.
//
// Items are tokens. What turns of a head comes first; the rest stays as it is.
#include "operator.h"
#include "rows.h"
#include "token_slots.h"
#include "turn.h"

namespace {

// in: q [T][N][D], k [T][D], arena, positions, query starts, block tables, cos, sin; out: q turned [T][N][D]
// i: N, D, half, S, items from one table to the next, is interleaved
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const int64_t heads = args.i[0], width = args.i[1], half = args.i[2];
  const bool is_interleaved = args.i[5];
  const auto* positions = static_cast<const int64_t*>(args.in[3]);
  const TokenSlots slots{positions, static_cast<const int64_t*>(args.in[4]),
                         static_cast<const int64_t*>(args.in[5]), args.i[3], args.i[4]};
  T* arena = static_cast<T*>(const_cast<void*>(args.in[2]));
  int64_t request = 0;  // of the token last asked for
  Span span;
  while (work.take(row_count(args, pass), 1, span)) {
    for (int64_t token = span.begin; token < span.end; token++) {
      request = slots.request_of(token, request);
      const float* cos = static_cast<const float*>(args.in[6]) + token * half;
      const float* sin = static_cast<const float*>(args.in[7]) + token * half;
      T* kept = arena + slots.slot(request, positions[token]) * width;
      const T* k = static_cast<const T*>(args.in[1]) + token * width;
      turn<true>(k, cos, sin, half, is_interleaved, kept);
      for (int64_t d = 2 * half; d < width; d++) narrow(nan_if_infinite(to_float(k[d])), kept + d);
      for (int64_t head = token * heads; head < (token + 1) * heads; head++) {
        const T* q = static_cast<const T*>(args.in[0]) + head * width;
        T* turned = static_cast<T*>(args.out[0]) + head * width;
        turn<false>(q, cos, sin, half, is_interleaved, turned);
        memcpy(turned + 2 * half, q + 2 * half, size_t(width - 2 * half) * sizeof(T));
      }
    }
  }
}

}  // namespace

OPERATOR(index_write_f32) { run<float>(args, pass, work); }
OPERATOR(index_write_bf16) { run<bf16>(args, pass, work); }
