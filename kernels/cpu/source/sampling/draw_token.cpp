// Draws a token from each row of scores; see kernels/sampling/draw_token.py.
#include "noisy_winner.h"
#include "score_floor.h"

namespace {

struct Draw {
  float temperature;
  float top_p;
  float least;  // below it no score passes, 0 being the best
  int64_t top_k;
  Stream stream;
};

constexpr size_t BYTES_A_TOKEN = 2 * sizeof(float) + sizeof(Weighed);

struct DrawTokenArgs : Args {
  FIELDS(Args,
         const float* scores;         // [..][stride]
         const int64_t* scored_rows;  // [rows] of scores
         const int64_t* best;         // [..] tokens
         const float* temperature;    // [rows], as the following
         const float* top_p;
         const float* least;
         const int64_t* top_k;
         const int64_t* streams;      // [rows][4]
         int64_t* drawn;              // [rows]
         int64_t num_tokens;
         int64_t stride;)
};

Draw draw_of(const DrawTokenArgs& args, int64_t item) {
  return {
      .temperature = args.temperature[item],
      .top_p = args.top_p[item],
      .least = args.least[item],
      .top_k = args.top_k[item],
      .stream = stream_of(args.streams, item),
  };
}

int64_t rounded_up(int64_t count) { return (count + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE * TOKENS_AT_ONCE; }

// (score - best) / temperature, padded with -infinity.
void relate(const float* scores, int64_t count, float best, float temperature, float* relative) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(relative + i, (load(scores + i) - best) / temperature);
  for (; i < count; i++) relative[i] = (scores[i] - best) / temperature;
  for (; i < rounded_up(count); i++) relative[i] = -INFINITE;
}

// The token with the largest sum of score and noise, among those with a score of at least `floor`. `first` is one of
// them.
int64_t noisy_best(Scores scores, float floor, const Stream& stream, int64_t first) {
  u32x16 words[4];
  words_of(stream, first / TOKENS_AT_ONCE * TOKENS_AT_ONCE, words);
  const auto noise = [&](int64_t lane) { return noise_of(words[lane / 16][lane % 16]); };
  Winner winner{first, double(scores.values[first]) + noise(first % TOKENS_AT_ONCE)};
  for (int64_t token = 0; token < scores.count; token += TOKENS_AT_ONCE) {
    uint64_t candidates = 0;
    for (int v = 0; v < 4; v++)
      candidates |= uint64_t(at_least(load(scores.values + token + 16 * v), splat(floor))) << (16 * v);
    if (!candidates) continue;
    words_of(stream, token, words);
    const f32x16 needed = splat(winner.needed());
    uint64_t may_win = 0;
    for (int v = 0; v < 4; v++) {
      const f32x16 most = load(scores.values + token + 16 * v) + most_noise_of(words[v]);
      may_win |= uint64_t(at_least(most, needed)) << (16 * v);
    }
    for (candidates &= may_win; candidates; candidates &= candidates - 1) {
      const int64_t lane = __builtin_ctzll(candidates);
      winner.meet(token + lane, double(scores.values[token + lane]) + noise(lane));
    }
  }
  return winner.token;
}

}  // namespace

OPERATOR(draw_token_f32, DrawTokenArgs) {
  const int64_t rows = row_count(args, pass), count = args.num_tokens, stride = args.stride;
  const int64_t width = rounded_up(count);
  Span items;
  while (work.take(rows, 1, items))
    for (int64_t item = items.begin; item < items.end; item++) {
      const int64_t row = args.scored_rows[item];
      const int64_t best = args.best[row];
      const float* scores = args.scores + row * stride;
      int64_t& token = args.drawn[item];
      token = best;
      if (scores[best] - scores[best] != 0) continue;  // nothing to draw from
      float* memory = static_cast<float*>(work.scratch(size_t(width) * BYTES_A_TOKEN));
      const Scores relative{memory, width};
      const Draw draw = draw_of(args, item);
      relate(scores, count, scores[best], draw.temperature, memory);
      float floor = draw.least;
      const int64_t top_k = draw.top_k < count ? draw.top_k : 0;
      if (top_k || draw.top_p < 1) {
        const FilterRoom room{memory + width, reinterpret_cast<Weighed*>(memory + 2 * width)};
        floor = std::max(floor, filter_floor(relative, top_k, double(draw.top_p), room));
      }
      token = noisy_best(relative, floor, draw.stream, best);
    }
}
