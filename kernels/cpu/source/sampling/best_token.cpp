// The best token of each row, and whether the row is finite; see kernels/sampling/best_token.py.
//
// A long row is cut into parts, so that several threads work on one; the results of parts are merged in the order of
// tokens.
#include <limits>

#include "operator.h"
#include "simd.h"

namespace {

constexpr int CHAINS = 4;  // independent of each other, so that none waits for the compare before it

struct Best {
  float score;
  int32_t is_finite;
  int64_t token;
};

struct Lanes {
  f32x16 score;
  i32x16 token;
  i32x16 is_bad{};  // all ones where a score was no finite number

  explicit Lanes(int32_t first) : score(splat(-std::numeric_limits<float>::infinity())) {
    for (int i = 0; i < 16; i++) token[i] = first + i;
  }

  // Only a larger score replaces the best, so ties go to the first token.
  void see(f32x16 scores, i32x16 tokens) {
    is_bad |= (scores - scores) != f32x16{};
    const i32x16 is_better = scores > score;
    score = is_better ? scores : score;
    token = is_better ? tokens : token;
  }
};

bool is_before(float score, int64_t token, const Best& best) {
  return score > best.score || (score == best.score && token < best.token);
}

void gather(const Lanes& lanes, Best& best) {
  for (int i = 0; i < 16; i++) {
    if (is_before(lanes.score[i], lanes.token[i], best)) {
      best.score = lanes.score[i];
      best.token = lanes.token[i];
    }
    if (lanes.is_bad[i]) best.is_finite = 0;
  }
}

Best best_of(const float* scores, Span tokens) {
  const i32x16 step = i32x16{} + 16 * CHAINS;
  Lanes lanes[CHAINS] = {Lanes(tokens.begin), Lanes(tokens.begin + 16), Lanes(tokens.begin + 32),
                         Lanes(tokens.begin + 48)};
  i32x16 next[CHAINS];
  for (int c = 0; c < CHAINS; c++) next[c] = lanes[c].token;
  int64_t token = tokens.begin;
  for (; token + 16 * CHAINS <= tokens.end; token += 16 * CHAINS)
    for (int c = 0; c < CHAINS; c++) {
      lanes[c].see(load(scores + token + 16 * c), next[c]);
      next[c] += step;
    }
  Best best{-std::numeric_limits<float>::infinity(), 1, tokens.begin};
  for (const Lanes& each : lanes) gather(each, best);
  for (; token < tokens.end; token++) {
    if (is_before(scores[token], token, best)) {
      best.score = scores[token];
      best.token = token;
    }
    if (!(scores[token] - scores[token] == 0)) best.is_finite = 0;
  }
  return best;
}

struct BestTokenArgs : Args {
  FIELDS(Args,
         const float* scores;  // [rows][stride]
         int64_t* tokens;      // [rows]
         uint8_t* are_finite;  // [rows]
         void* bests;          // room for a Best of each part [rows][parts]
         int64_t num_tokens;
         int64_t stride;
         int64_t num_parts;)
};

}  // namespace

OPERATOR(best_token_f32, BestTokenArgs) {
  const int64_t rows = row_count(args, pass), num_tokens = args.num_tokens, stride = args.stride, parts = args.num_parts;
  const float* scores = args.scores;
  Best* best = static_cast<Best*>(args.bests);
  const int64_t part_len = (num_tokens + parts - 1) / parts;
  Span items;
  while (work.take(rows * parts, grain_of(rows * parts, work), items))
    for (int64_t item = items.begin; item < items.end; item++) {
      const int64_t begin = item % parts * part_len, end = begin + part_len;
      best[item] = best_of(scores + item / parts * stride, {begin, end < num_tokens ? end : num_tokens});
    }
  work.barrier();
  if (work.thread() != 0) return;
  for (int64_t row = 0; row < rows; row++) {
    Best whole = best[row * parts];
    for (int64_t part = 1; part < parts; part++) {
      const Best& other = best[row * parts + part];
      if (other.score > whole.score) whole.score = other.score, whole.token = other.token;
      whole.is_finite &= other.is_finite;
    }
    args.tokens[row] = whole.token;
    args.are_finite[row] = uint8_t(whole.is_finite);
  }
}
