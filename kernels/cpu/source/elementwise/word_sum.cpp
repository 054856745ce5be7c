// The sum of 64-bit words at memory bandwidth, which it is used to measure.
#include <algorithm>

#include "operator.h"
#include "simd.h"

namespace {

typedef uint64_t u64x8 __attribute__((vector_size(64)));

constexpr int64_t SPAN_WORDS = 1 << 17;  // 1 MiB
constexpr int64_t LANES = 8;
constexpr int64_t UNROLLED = 4;  // vectors in flight

u64x8 load_words(const uint64_t* p) {
  u64x8 v;
  memcpy(&v, p, 64);
  return v;
}

uint64_t sum_of(const uint64_t* words, int64_t count) {
  u64x8 sums[UNROLLED] = {};
  int64_t i = 0;
  for (; i + UNROLLED * LANES <= count; i += UNROLLED * LANES)
    for (int64_t u = 0; u < UNROLLED; u++) sums[u] += load_words(words + i + u * LANES);
  uint64_t total = 0;
  for (; i < count; i++) total += words[i];
  for (const u64x8& sum : sums)
    for (int64_t lane = 0; lane < LANES; lane++) total += sum[lane];
  return total;
}

struct WordSumArgs : Args {
  FIELDS(Args,
         const uint64_t* words;  // [rows]
         void* total;)           // [1] int64, to which the words are added; it wraps around
};

}  // namespace

OPERATOR(word_sum, WordSumArgs) {
  const uint64_t* words = args.words;
  auto& total = *static_cast<std::atomic<uint64_t>*>(args.total);
  const int64_t num_spans = (row_count(args, pass) + SPAN_WORDS - 1) / SPAN_WORDS;
  Span span;
  while (work.take(num_spans, 1, span)) {
    const int64_t begin = span.begin * SPAN_WORDS;
    const int64_t end = std::min(span.end * SPAN_WORDS, row_count(args, pass));
    total.fetch_add(sum_of(words + begin, end - begin), std::memory_order_relaxed);
  }
}
