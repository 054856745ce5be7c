// The table of replicas, in the layout of router/table/columns.py: [rows of Column][stride], one column per replica.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace baton {

enum Column {
  NEXT_FREE, OLDEST_ENDS, TOLD_UNTIL, RECENT, NUM_RECENT, NUM_OPEN, NUM_OPEN_TOKENS, NUM_OPEN_BLOCKS, CREDIT,
  NUM_RUNNING, LINE, NUM_WAITING, NUM_ONGOING, STEP, TOKEN, PAIR, MAX_CHUNK, RATE
};

// Seconds until a replica has computed the work sent to it: `busy_s` of router/replicas/candidates.py.
inline double busy_s(const double* numbers, int64_t stride, int64_t row, double now, double late_s) {
  const auto of = [&](Column column) { return numbers[column * stride + row]; };
  const double overdue_s = -std::min(of(OLDEST_ENDS) - now + late_s, 0.0);
  return std::max(std::max(of(NEXT_FREE) - now, 0.0) + overdue_s, of(TOLD_UNTIL) - now);
}

// The speed of a replica: router/speeds/coefficients.py.
struct Pace {
  double step_s, token_s, pair_s, max_chunk, tokens_per_s;
};

// Seconds for a prompt of which `num_held` tokens need not be computed: `works_s` of router/replicas/candidates.py.
inline double work_s(const Pace& pace, double num_tokens, double num_held) {
  const double num_new = num_tokens - std::min(num_held, num_tokens - 1.0);
  const double pairs_s = (num_new * -0.5 + (num_tokens - 0.5)) * num_new * pace.pair_s;
  return std::ceil(num_new / pace.max_chunk) * pace.step_s + num_new * pace.token_s + pairs_s +
         num_new / pace.tokens_per_s;
}

}  // namespace baton
