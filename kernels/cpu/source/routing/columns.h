// The columns of replicas, as router/table/columns.py lays them out: [rows of Column][stride], a column a replica.
#pragma once
#include <algorithm>
#include <cstdint>

namespace baton {

enum Column {
  NEXT_FREE, OLDEST_ENDS, TOLD_UNTIL, RECENT, NUM_RECENT, NUM_OPEN, NUM_OPEN_TOKENS, NUM_OPEN_BLOCKS, CREDIT,
  NUM_RUNNING, LINE, NUM_WAITING, NUM_ONGOING, STEP, TOKEN, PAIR, MAX_CHUNK, RATE
};

// Seconds until a replica has computed what was sent there: router/replicas/candidates.py, `busy_s`.
inline double busy_s(const double* numbers, int64_t stride, int64_t row, double now, double late_s) {
  const auto of = [&](Column column) { return numbers[column * stride + row]; };
  const double overdue_s = -std::min(of(OLDEST_ENDS) - now + late_s, 0.0);
  return std::max(std::max(of(NEXT_FREE) - now, 0.0) + overdue_s, of(TOLD_UNTIL) - now);
}

}  // namespace baton
