// Rotates the index's queries and keys, and stores the keys; see kernels/cache_write/index_write.py.
//
// Items are tokens. The rotated part of a head comes first; the rest is unchanged.
#include "operator.h"
#include "rows.h"
#include "token_slots.h"
#include "rotate.h"

namespace {

template <typename T>
struct IndexWriteArgs : Args {
  FIELDS(Args,
         const T* q;                   // [T][N][D]
         const T* k;                   // [T][D]
         T* arena;                     // [blocks][S][D]
         const int64_t* positions;     // [T]
         const int64_t* query_starts;  // [R + 1]
         const int64_t* block_tables;  // [R][table_stride]
         const float* cos;             // [T][half]
         const float* sin;
         T* rotated;                    // as q
         int64_t num_heads;            // N
         int64_t width;                // D
         int64_t half;
         int64_t block_size;           // S
         int64_t table_stride;
         int64_t is_interleaved;)
};

template <typename T>
void run(const IndexWriteArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t heads = args.num_heads, width = args.width, half = args.half;
  const bool is_interleaved = args.is_interleaved;
  const TokenSlots slots = slots_of(args);
  int64_t request = 0;  // of the token last asked for
  Span span;
  while (work.take(row_count(args, pass), 1, span)) {
    for (int64_t token = span.begin; token < span.end; token++) {
      request = slots.request_of(token, request);
      const float* cos = args.cos + token * half;
      const float* sin = args.sin + token * half;
      T* kept = args.arena + slots.slot(request, args.positions[token]) * width;
      const T* k = args.k + token * width;
      rotate<true>(k, cos, sin, half, is_interleaved, kept);
      for (int64_t d = 2 * half; d < width; d++) narrow(nan_if_infinite(to_float(k[d])), kept + d);
      for (int64_t head = token * heads; head < (token + 1) * heads; head++) {
        const T* q = args.q + head * width;
        T* rotated = args.rotated + head * width;
        rotate<false>(q, cos, sin, half, is_interleaved, rotated);
        memcpy(rotated + 2 * half, q + 2 * half, size_t(width - 2 * half) * sizeof(T));
      }
    }
  }
}

}  // namespace

OPERATOR(index_write_f32, IndexWriteArgs<float>) { run<float>(args, pass, work); }
OPERATOR(index_write_bf16, IndexWriteArgs<bf16>) { run<bf16>(args, pass, work); }
