// Who is least of several replicas; equals are settled by draw. router/decode_choice.py and
// router/policies/routing_policy.py have the same in numpy: their definitions, to the same choice.
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

// The place of who has least to do besides what it lacks of a prompt; of equals who has more of it, then by
// draw. By row: `num_busy` tokens, `cached` and `expected` tokens of the prompt. `many`: more than any has.
int64_t baton_least_busy(const double* num_busy, const double* cached, const double* expected,
                         const uint64_t* draws, const int64_t* rows, int64_t num, double many, uint64_t draw) {
  int64_t best = -1;
  double least = INFINITY;
  for (int64_t place = 0; place < num; place++) {
    const int64_t row = rows ? rows[place] : place;
    const double num_has = std::max(cached[row], expected[row]);
    const double cost = (num_busy[row] - num_has) * many - num_has;
    if (best >= 0 && cost > least) continue;
    if (best >= 0 && cost == least) {
      const int64_t best_row = rows ? rows[best] : best;
      if (mixed(draws[row], draw) >= mixed(draws[best_row], draw)) continue;
    }
    best = place, least = cost;
  }
  return best;
}

}
