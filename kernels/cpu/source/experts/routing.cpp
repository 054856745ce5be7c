// Chooses the experts of each token, and their shares; then sorts all (token, choice) pairs by expert. See
// kernels/experts/routing.py.
#include <algorithm>
#include <cmath>
#include <limits>

#include "functions.h"
#include "operator.h"

namespace {

enum Score { SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN, SIGMOID_OF_CHOSEN, ROOT_OF_SOFTPLUS };

constexpr int64_t ROWS_AT_ONCE = 16;
constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr float TINY_SUM = 1e-20f;

int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }

// The scores of a token's experts, or of its choices, in whole vectors padded with `NEVER`.
struct Scores {
  float* values;
  int64_t count;

  template <typename Change>
  void each_vector(Change change) const {
    for (int64_t e = 0; e < count; e += 16) store(values + e, change(load(values + e)));
    pad();
  }

  void pad() const { std::fill(values + count, values + padded(count), NEVER); }

  float most() const {
    f32x16 best = splat(NEVER);
    for (int64_t e = 0; e < count; e += 16) {
      const f32x16 some = load(values + e);
      best = some > best ? some : best;
    }
    return largest(best);
  }

  // Takes the first of the best scores; if only NaN is left, the first of those.
  int64_t take_best(const int32_t* taken, int64_t num_taken) const {
    const float best = most();
    int64_t e = 0;
    if (best > NEVER)
      while (values[e] != best) e++;
    else
      while (std::find(taken, taken + num_taken, e) != taken + num_taken) e++;
    values[e] = NEVER;
    return e;
  }

  void softmax() const {
    const f32x16 best = splat(most());
    f32x16 total{};
    each_vector([&](f32x16 v) {
      v = exp(v - best);
      total += v;
      return v;
    });
    const float inverse = 1.0f / sum(total);
    each_vector([&](f32x16 v) { return v * inverse; });
  }

  void sigmoid() const {
    each_vector([](f32x16 v) { return 1.0f / (1.0f + exp(-v)); });
  }

  void root_of_softplus() const {
    for (int64_t e = 0; e < count; e++) {
      const float v = values[e];
      values[e] = std::sqrt(v > 20 ? v : std::log1p(std::exp(v)));
    }
    pad();
  }
};

struct RouteArgs : Args {
  FIELDS(Args,
         const float* logits;      // [rows][E]
         const float* bias;        // [E] or null
         const float* correction;  // [E] or null
         const int64_t* tokens;    // [rows], and
         const int64_t* table;     // [V][C] the experts of each; or both null
         int32_t* experts;         // [rows][C]
         float* shares;            // [rows][C]
         int32_t* pairs;           // [rows][C]
         int32_t* stops;           // [E]
         int64_t num_experts;      // E
         int64_t num_choices;      // C
         int64_t score;
         int64_t is_normalised;
         int64_t num_groups;
         int64_t num_chosen_groups;
         int64_t num_best;         // experts that rank a group
         double scale;)
};

struct Router {
  Scores scores, compared, of_groups;
  const float *bias, *correction;  // or null
  int64_t num_choices, score;
  bool is_normalised;
  int64_t num_chosen_groups, num_best;
  float scale;

  static int64_t scratch_floats(const RouteArgs& args) {
    return 2 * padded(args.num_experts) + padded(args.num_groups) + padded(args.num_choices);
  }

  Router(const RouteArgs& args, float* scratch)
      : scores{scratch, args.num_experts},
        compared{scratch + padded(args.num_experts), args.num_experts},
        of_groups{scratch + 2 * padded(args.num_experts), args.num_groups},
        bias(args.bias),
        correction(args.correction),
        num_choices(args.num_choices),
        score(args.score),
        is_normalised(args.is_normalised != 0),
        num_chosen_groups(args.num_chosen_groups),
        num_best(args.num_best),
        scale(float(args.scale)) {}

  // `given`: the experts, if they were chosen elsewhere; or null.
  void route(const float* logits, const int64_t* given, int32_t* experts, float* shares) const {
    for (int64_t e = 0; e < scores.count; e++) scores.values[e] = logits[e] + (bias ? bias[e] : 0);
    scores.pad();
    if (score == SOFTMAX) scores.softmax();
    if (score == SIGMOID) scores.sigmoid();
    if (score == ROOT_OF_SOFTPLUS) scores.root_of_softplus();
    if (given) {
      for (int64_t c = 0; c < num_choices; c++) {
        experts[c] = int32_t(given[c]);
        shares[c] = scores.values[experts[c]];
      }
      return finish(shares);
    }
    for (int64_t e = 0; e < scores.count; e++)
      compared.values[e] = scores.values[e] + (correction ? correction[e] : 0);
    compared.pad();
    if (num_chosen_groups < of_groups.count) keep_best_groups();
    for (int64_t c = 0; c < num_choices; c++) {
      experts[c] = int32_t(compared.take_best(experts, c));
      shares[c] = scores.values[experts[c]];
    }
    finish(shares);
  }

 private:
  // Ranks groups by the best score of their experts, or the sum of the best two, and excludes the other groups.
  void keep_best_groups() const {
    const int64_t size = compared.count / of_groups.count;
    for (int64_t g = 0; g < of_groups.count; g++) {
      float best = NEVER, second = NEVER;
      for (int64_t e = g * size; e < (g + 1) * size; e++) {
        const float v = compared.values[e];
        second = v > best ? best : v > second ? v : second;
        best = v > best ? v : best;
      }
      of_groups.values[g] = num_best == 2 ? best + second : best;
    }
    of_groups.pad();
    for (int64_t out = num_chosen_groups; out < of_groups.count; out++) {
      int64_t worst = 0;  // of equals the last
      for (int64_t g = 0; g < of_groups.count; g++)
        if (!(of_groups.values[g] > of_groups.values[worst])) worst = g;
      of_groups.values[worst] = -NEVER;
      std::fill(compared.values + worst * size, compared.values + (worst + 1) * size, NEVER);
    }
  }

  void finish(float* shares) const {
    const Scores chosen{of_groups.values + padded(of_groups.count), num_choices};
    std::copy(shares, shares + num_choices, chosen.values);
    chosen.pad();
    if (score == SOFTMAX_OF_CHOSEN) chosen.softmax();
    if (score == SIGMOID_OF_CHOSEN) chosen.sigmoid();
    float total = TINY_SUM;
    for (int64_t c = 0; c < num_choices; c++) total += chosen.values[c];
    const float factor = is_normalised ? scale / total : scale;
    for (int64_t c = 0; c < num_choices; c++) shares[c] = chosen.values[c] * factor;
  }
};

// A counting sort: the pairs of an expert stay in the order of tokens.
void sort_pairs(const int32_t* experts, int64_t num_pairs, int64_t num_experts, int32_t* stops,
                int32_t* pairs) {
  std::fill(stops, stops + num_experts, 0);
  for (int64_t pair = 0; pair < num_pairs; pair++) stops[experts[pair]]++;
  int32_t start = 0;
  for (int64_t e = 0; e < num_experts; e++) {
    const int32_t count = stops[e];
    stops[e] = start;
    start += count;
  }
  for (int64_t pair = 0; pair < num_pairs; pair++)
    pairs[stops[experts[pair]]++] = int32_t(pair);  // where a group began, it then ends
}

}  // namespace

OPERATOR(route, RouteArgs) {
  const int64_t num_rows = row_count(args, pass), num_experts = args.num_experts, num_choices = args.num_choices;
  const float* logits = args.logits;
  const int64_t* tokens = args.tokens;
  const int64_t* table = args.table;
  int32_t* experts = args.experts;
  float* shares = args.shares;
  void* scratch = work.scratch(size_t(Router::scratch_floats(args)) * sizeof(float));
  const Router router(args, static_cast<float*>(scratch));
  Span span;
  while (work.take(num_rows, ROWS_AT_ONCE, span))
    for (int64_t row = span.begin; row < span.end; row++)
      router.route(logits + row * num_experts, tokens ? table + tokens[row] * num_choices : nullptr,
                   experts + row * num_choices, shares + row * num_choices);
  work.barrier();
  while (work.take(1, 1, span))
    sort_pairs(experts, num_rows * num_choices, num_experts, args.stops, args.pairs);
}
