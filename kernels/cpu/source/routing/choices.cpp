// Who is least of several replicas, equals being settled by draw; and what decoding costs at each. The definitions
// are in numpy, in router/policies/routing_policy.py and router/decode_costs.py: to the same bits.
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

// router/prompt.py: `mixed`.
uint64_t mixed(uint64_t one, uint64_t other) {
  uint64_t bits = one ^ other;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
  return bits ^ bits >> 31;
}

// Rows of `facts`, as router/table/decode_columns.py has them.
enum DecodeFact {
  NUM_REQUESTS, NUM_SINCE, CONTEXT_TOKENS, CONSTANT, REQUEST, CONTEXT, FREE_TOKENS, USED_TOKENS, HEARD_AT
};

}  // namespace

extern "C" {

// Write into `out` the places of the least `num_out` of `num` costs, at most `num` of them, the least first.
// Numbers of their own are behind all others, as if infinite. `draws`: of rows; `rows`: each place's; null:
// a place is its row.
void baton_least(const double* costs, int64_t num, const uint64_t* draws, const int64_t* rows, uint64_t draw,
                 int64_t num_out, int64_t* out) {
  const auto cost = [&](int64_t place) { return std::isnan(costs[place]) ? INFINITY : costs[place]; };
  const auto drawn = [&](int64_t place) { return mixed(draws[rows ? rows[place] : place], draw); };
  int64_t num_found = 0;
  for (int64_t place = 0; place < num; place++) {
    const double its = cost(place);
    if (num_found == num_out && its > cost(out[num_out - 1])) continue;
    const auto goes_before = [&](int64_t other) {
      const double others = cost(other);
      return its < others || (its == others && drawn(place) < drawn(other));
    };
    int64_t at = num_found;
    while (at > 0 && goes_before(out[at - 1])) at--;
    if (at == num_out) continue;
    num_found = std::min(num_found + 1, num_out);
    std::copy_backward(out + at, out + num_found - 1, out + num_found);
    out[at] = place;
  }
}

// One request that is to be decoded, and what holds for all replicas; router/decode_costs.py fills it in.
struct BatonAskedToDecode {
  double now, num_tokens, num_output, tokens_per_s, patience_s;
  double constant_s, request_s, context_s;  // of those that have measured no steps
};

// What decoding costs at each of `num` replicas. `facts`: [rows of DecodeFact][stride]; by row: seconds until it
// is free, `cached` and `expected` tokens of the prompt. `rows`: each place's; null: a place is its row.
// Out: [queued, silent, decode, harm, blocks, lacks, total][num].
void baton_decode_costs(const BatonAskedToDecode* asked, const double* facts, int64_t stride,
                        const double* busy_s, const double* cached, const double* expected, const int64_t* rows,
                        int64_t num, double* out) {
  const BatonAskedToDecode a = *asked;
  const auto measured = [](double its, double usual) { return std::isnan(its) ? usual : its; };
  const double length = a.num_tokens + a.num_output / 2.0;
  for (int64_t place = 0; place < num; place++) {
    const int64_t row = rows ? rows[place] : place;
    const auto of = [&](DecodeFact fact) { return facts[fact * stride + row]; };
    const double constant_s = measured(of(CONSTANT), a.constant_s);
    const double request_s = measured(of(REQUEST), a.request_s), context_s = measured(of(CONTEXT), a.context_s);
    const double requests = of(NUM_REQUESTS), since = of(NUM_SINCE);
    const double step_s = constant_s + (requests + 1.0) * request_s +
                          (of(CONTEXT_TOKENS) + (since + 1.0) * length) * context_s;
    const double silent_s = std::max(a.now - of(HEARD_AT) - a.patience_s, 0.0);
    const double decode_s = step_s * a.num_output;
    const double harm_s = requests * a.num_output * (request_s + length * context_s);
    const double wanted = (since + 1.0) * (a.num_tokens + a.num_output);
    const double lack = std::max(wanted - of(FREE_TOKENS), 0.0);
    const double blocks_s = lack / a.tokens_per_s + lack / of(USED_TOKENS) * decode_s;
    const double lacks_s = std::max(a.num_tokens - std::max(cached[row], expected[row]), 0.0) / a.tokens_per_s;
    const double terms[] = {busy_s[row], silent_s, decode_s, harm_s, blocks_s, lacks_s};
    double total_s = terms[0];
    for (int term = 1; term < 6; term++) total_s += terms[term];
    for (int term = 0; term < 6; term++) out[term * num + place] = terms[term];
    out[6 * num + place] = total_s;
  }
}

}
