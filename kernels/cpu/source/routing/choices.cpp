// Chooses among replicas: the one with the least cost, with ties broken by draw; the one where decoding costs least;
// the one with most of a prompt. The definitions are in numpy, in router/policies/routing_policy.py,
// router/decode_costs.py and router/fetching.py, and give the same bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "choices.h"
#include "columns.h"

namespace {

using namespace baton;

// See `mixed` in router/prompt.py.
uint64_t mixed(uint64_t one, uint64_t other) {
  uint64_t bits = one ^ other;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
  return bits ^ bits >> 31;
}

// Rows of `facts`, as in router/table/decode_columns.py.
enum DecodeFact {
  NUM_REQUESTS, NUM_SINCE, CONTEXT_TOKENS, CONSTANT, REQUEST, CONTEXT, FREE_TOKENS, USED_TOKENS, HEARD_AT
};

}  // namespace

extern "C" {

// Writes to `out` the indices of the least `num_out` of `num` costs, the least first. NaN counts as infinite. `draws`:
// by row; `rows`: the row of each index; null: they are equal.
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

// A request to decode, and settings common to all replicas; filled in by kernels/routing/choices_cpu.py.
struct BatonAskedToDecode {
  double now, late_s, steepness, num_tokens, num_output, itl_s, tokens_per_s, patience_s;
  double constant_s, request_s, context_s;  // of those that have measured no steps
};

constexpr int64_t NUM_DECODE_TERMS = 7;  // queued, silent, decode, harm, blocks, lacks, late

// Writes to `out` the indices of the `num_out` of `num` replicas where decoding costs least, the least first, and to
// `told` the costs there: [term, total, tokens of the prompt that it has or will have][num_out]. `numbers`: [rows of
// Column][stride]; `facts`: [rows of DecodeFact][facts_stride]; by row: `cached` and `expected` tokens of the prompt,
// and draws. `rows`: the row of each index; null: they are equal.
void baton_least_to_decode(const BatonAskedToDecode* asked, const double* numbers, int64_t stride,
                           const double* facts, int64_t facts_stride, const double* cached, const double* expected,
                           const uint64_t* draws, const int64_t* rows, int64_t num, uint64_t draw, int64_t num_out,
                           int64_t* out, double* told) {
  const BatonAskedToDecode a = *asked;
  const auto measured = [](double its, double usual) { return std::isnan(its) ? usual : its; };
  const double length = a.num_tokens + a.num_output / 2.0;
  const auto costs = [&](int64_t place, double* found) {
    const int64_t row = rows ? rows[place] : place;
    const auto of = [&](DecodeFact fact) { return facts[fact * facts_stride + row]; };
    const double constant_s = measured(of(CONSTANT), a.constant_s);
    const double request_s = measured(of(REQUEST), a.request_s), context_s = measured(of(CONTEXT), a.context_s);
    const double requests = of(NUM_REQUESTS), since = of(NUM_SINCE);
    const double step_s = constant_s + (requests + 1.0) * request_s +
                          (of(CONTEXT_TOKENS) + (since + 1.0) * length) * context_s;
    const double decode_s = step_s * a.num_output;
    const double wanted = (since + 1.0) * (a.num_tokens + a.num_output);
    const double lack = std::max(wanted - of(FREE_TOKENS), 0.0);
    const double has = std::max(cached[row], expected[row]);
    found[0] = busy_s(numbers, stride, row, a.now, a.late_s);
    found[1] = std::max(a.now - of(HEARD_AT) - a.patience_s, 0.0);
    found[2] = decode_s;
    found[3] = requests * a.num_output * (request_s + length * context_s);
    found[4] = lack / a.tokens_per_s + lack / of(USED_TOKENS) * decode_s;
    found[5] = std::max(a.num_tokens - has, 0.0) / a.tokens_per_s;
    const double over_s = std::max(step_s - a.itl_s, 0.0) * a.num_output;
    found[6] = over_s + std::min(a.steepness * over_s, a.itl_s * a.num_output);
    found[NUM_DECODE_TERMS] = found[0];
    for (int64_t term = 1; term < NUM_DECODE_TERMS; term++) found[NUM_DECODE_TERMS] += found[term];
    return has;
  };
  double found[NUM_DECODE_TERMS + 1];
  std::vector<double> totals(static_cast<size_t>(num));
  for (int64_t place = 0; place < num; place++) {
    costs(place, found);
    totals[static_cast<size_t>(place)] = found[NUM_DECODE_TERMS];
  }
  baton_least(totals.data(), num, draws, rows, draw, num_out, out);
  for (int64_t at = 0; at < num_out; at++) {
    const double held = costs(out[at], found);
    for (int64_t term = 0; term <= NUM_DECODE_TERMS; term++) told[term * num_out + at] = found[term];
    told[(NUM_DECODE_TERMS + 1) * num_out + at] = held;
  }
}

// The row of the replica with most of a prompt, among those that can lend it: connected and not away. Ties are broken
// by draw. -1 if none has `least` tokens, at least one.
int64_t baton_most_of(const double* cached, const bool* is_connected, const bool* is_away, int64_t num,
                      const uint64_t* draws, uint64_t draw, double least) {
  int64_t best = -1;
  for (int64_t row = 0; row < num; row++) {
    if (!is_connected[row] || is_away[row] || !(cached[row] >= least)) continue;
    const bool is_better = best < 0 || cached[row] > cached[best] ||
                           (cached[row] == cached[best] && mixed(draws[row], draw) < mixed(draws[best], draw));
    if (is_better) best = row;
  }
  return best;
}

// A replica that could lend its `num_held` tokens of a prompt; filled in by router/fetching.py.
struct BatonLender {
  double num_held, token_bytes, latency_s, bytes_per_s;
  double tokens_per_s, min_tokens, clearly;  // when it pays: `router/cache/pulling.py`
};

// For which of `num` replicas, which have `tokens` themselves, fetching the rest pays: writes the `usable` tokens then,
// and the seconds to fetch them, as [usable, fetch][num]. Returns the number of replicas for which it pays.
int64_t baton_fetches(const BatonLender* lender, const double* tokens, int64_t num, double* out) {
  const BatonLender a = *lender;
  int64_t num_paid = 0;
  for (int64_t place = 0; place < num; place++) {
    const double num_more = a.num_held - tokens[place];
    const double fetch_s = a.latency_s + std::max(num_more, 0.0) * a.token_bytes / a.bytes_per_s;
    const bool pays = num_more >= a.min_tokens && num_more / a.tokens_per_s >= a.clearly * fetch_s;
    out[place] = pays ? a.num_held : tokens[place];
    out[num + place] = pays ? fetch_s : 0.0;
    num_paid += pays;
  }
  return num_paid;
}

}
