// Scores without the tokens that are not in a row's bitmask; see kernels/sampling/token_mask.py.
#include <cstring>
#include <limits>

#include "operator.h"
#include "simd.h"

namespace {

constexpr int64_t WORD_BITS = 32;
constexpr int64_t PART_WORDS = 256;  // of one item of work: 32 KiB of scores
constexpr float NEVER = -std::numeric_limits<float>::infinity();

struct KeepTokensArgs : Args {
  FIELDS(Args,
         const float* scores;     // [rows][stride]
         const int32_t* masks;    // [any][num_words]
         const int64_t* mask_of;  // [rows], the number of each row's mask; -1: all tokens are kept
         float* kept;             // [rows][num_tokens]
         int64_t num_tokens;
         int64_t num_words;
         int64_t stride;)
};

void keep(const float* scores, const int32_t* mask, Span tokens, float* kept) {
  i32x16 bit;
  for (int i = 0; i < 16; i++) bit[i] = 1 << i;
  const f32x16 never = splat(NEVER);
  int64_t token = tokens.begin;  // of the first bit of a word
  for (; token + 16 <= tokens.end; token += 16) {
    const int32_t half = int32_t(uint32_t(mask[token / WORD_BITS]) >> token % WORD_BITS);
    const i32x16 is_in = ((i32x16{} + half) & bit) != 0;
    store(kept + token, is_in ? load(scores + token) : never);
  }
  for (; token < tokens.end; token++)
    kept[token] = uint32_t(mask[token / WORD_BITS]) >> token % WORD_BITS & 1 ? scores[token] : NEVER;
}

}  // namespace

OPERATOR(keep_tokens_f32, KeepTokensArgs) {
  const int64_t rows = row_count(args, pass), num_tokens = args.num_tokens, num_words = args.num_words;
  const int64_t parts = (num_words + PART_WORDS - 1) / PART_WORDS, part_len = PART_WORDS * WORD_BITS;
  Span items;
  while (work.take(rows * parts, grain_of(rows * parts, work), items))
    for (int64_t item = items.begin; item < items.end; item++) {
      const int64_t row = item / parts, begin = item % parts * part_len;
      const Span tokens{begin, begin + part_len < num_tokens ? begin + part_len : num_tokens};
      const float* scores = args.scores + row * args.stride;
      float* kept = args.kept + row * num_tokens;
      const int64_t number = args.mask_of[row];
      if (number < 0) memcpy(kept + begin, scores + begin, size_t(tokens.end - begin) * sizeof(float));
      else keep(scores, args.masks + number * num_words, tokens, kept);
    }
}
