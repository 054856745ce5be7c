// The cost of one prompt at each of several replicas, in seconds. The terms are defined in router/policies/cost.py,
// whose reference computes them in the same order and gives the same bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "choices.h"
#include "columns.h"

namespace {

using namespace baton;

// Piecewise linear interpolation between (ends, sums), which begin at 0; constant after the last end.
double interpolated(double x, const double* ends, const double* sums, int64_t num_ends) {
  if (x >= ends[num_ends - 1]) return sums[num_ends - 1];
  const int64_t next = std::upper_bound(ends, ends + num_ends, x) - ends, before = next - 1;
  if (ends[before] == x) return sums[before];
  const double slope = (sums[next] - sums[before]) / (ends[next] - ends[before]);
  return slope * (x - ends[before]) + sums[before];
}

}  // namespace

extern "C" {

constexpr int64_t NUM_TERMS = 9;  // work, wait, transfer, charged, harm, balance, surplus, late, total

// A prompt, and settings common to all replicas; filled in by kernels/routing/cost_terms_cpu.py.
struct BatonAsked {
  double now, late_s, num_tokens, arrived_s, latest_s, stretch, later_s;  // by `turns.py`
  double due_by_s, most_later_s, little, steepness;                       // by `slo.py`
  double price, coming_per_s, balance_s, evenness, spare, haste, most_s;
  double left, future_s, home, mean_share_s, crowd;  // `home`: a row; below 0: none
};

// A replica's numbers are one column of [rows of Column][stride]. `places`: the columns to use; null: the first `num`.
// `held`: tokens that the replica need not compute. `fetch_s`, `handoff_s`: null means no time. `ends` and `sums`:
// tokens, and how many of these are charged; null: all. The line: for whom each prompt waits, when it is due, how long
// it takes.
//
// Out: [work, wait, transfer, charged, harm, balance, surplus, late, total][num]; the indices of the `num_least`
// replicas with the least total, the least first, with ties broken by `draws` of rows and `draw`; and in `told` their
// columns of all that, followed by what each has and fetches: [work, ..., total, held, fetch][num_least].
void baton_cost_terms(const BatonAsked* asked, const double* numbers, int64_t stride, int64_t num_rows,
                      const int64_t* places, int64_t num, const double* held, const double* fetch_s,
                      const double* handoff_s, const double* ends,
                      int64_t num_ends, const int64_t* line_rows, const double* line_due_s,
                      const double* line_work_s, int64_t num_line, double* out, const uint64_t* draws, uint64_t draw,
                      int64_t num_least, int64_t* least, double* told) {
  const BatonAsked a = *asked;
  const auto of = [&](Column column, int64_t row) { return numbers[column * stride + row]; };
  const double* sums = ends + num_ends;
  double *work_s = out, *wait_s = out + num, *transfer_s = out + 2 * num, *charged_s = out + 3 * num;
  double *harm_s = out + 4 * num, *balance_s = out + 5 * num, *surplus_s = out + 6 * num;
  double *late_s = out + 7 * num, *total_s = out + 8 * num;
  const double allowed_s = a.due_by_s - a.arrived_s;
  std::vector<double> due_s, ahead_s, num_ahead;  // by row; nobody goes before at a row that is not asked for
  if (num_line) {
    due_s.assign(size_t(num_rows), -INFINITY);
    ahead_s.assign(size_t(num_rows), 0.0);
    num_ahead.assign(size_t(num_rows), 0.0);
  }
  for (int64_t i = 0; i < num; i++) {
    const int64_t row = places ? places[i] : i;
    const Pace pace = {of(STEP, row), of(TOKEN, row), of(PAIR, row), of(MAX_CHUNK, row), of(RATE, row)};
    work_s[i] = baton::work_s(pace, a.num_tokens, held[i]);
    if (num_line) {
      const double latest_s = std::max(a.latest_s, of(LINE, row));
      double offset_s = std::min(a.stretch * work_s[i], latest_s);
      if (a.due_by_s < INFINITY) {
        const double start_in_s = allowed_s - work_s[i];
        const bool is_late = start_in_s < a.now - a.arrived_s;
        const double last_s = offset_s <= a.little * a.latest_s ? offset_s : latest_s;
        offset_s = std::min(is_late ? std::max(start_in_s, last_s) : start_in_s, a.most_later_s);
      }
      due_s[size_t(row)] = a.arrived_s + offset_s + a.later_s;
    }
  }
  for (int64_t j = 0; j < num_line; j++) {
    const auto row = size_t(line_rows[j]);
    if (line_due_s[j] > due_s[row]) continue;
    ahead_s[row] += line_work_s[j];
    num_ahead[row] += 1.0;
  }
  for (int64_t i = 0; i < num; i++) {
    const int64_t row = places ? places[i] : i;
    double num_harmed = of(NUM_RUNNING, row);
    wait_s[i] = busy_s(numbers, stride, row, a.now, a.late_s);
    if (num_line) {
      wait_s[i] += ahead_s[size_t(row)];
      num_harmed += of(NUM_WAITING, row) - num_ahead[size_t(row)];
    }
    transfer_s[i] = fetch_s ? fetch_s[i] : 0.0;
    if (handoff_s) transfer_s[i] += handoff_s[i];
    charged_s[i] = work_s[i] * a.price;
    if (ends) {
      const double cached = std::min(held[i], a.num_tokens - 1.0);
      const double charged = sums[num_ends - 1] - interpolated(cached, ends, sums, num_ends);
      charged_s[i] *= charged / (a.num_tokens - cached);
    }
    harm_s[i] = (num_harmed + a.coming_per_s * work_s[i]) * work_s[i];
    const double others = of(NUM_ONGOING, row) - (double(row) == a.home ? 1.0 : 0.0);
    const double brought_s = of(RECENT, row) * a.left + others * a.future_s;
    const double share = a.mean_share_s != 0.0 ? brought_s / a.mean_share_s : 1.0;
    balance_s[i] = (share - 1.0) * a.balance_s;
    surplus_s[i] = 0.0;
    if (a.evenness != 0.0) {
      const double brings_s = work_s[i] + a.future_s;
      const double over = brings_s / (2.0 * a.mean_share_s) + share - 1.0;
      const double charged = std::max(over, 0.0) + std::max(over - a.spare, 0.0) * a.haste;
      surplus_s[i] = std::min(charged * a.evenness * brings_s, a.most_s);
    }
    if (a.crowd != 0.0) {
      balance_s[i] /= 1.0 + a.crowd;
      surplus_s[i] /= 1.0 + a.crowd;
    }
    const double over_s = std::max(a.now + wait_s[i] + transfer_s[i] + work_s[i] - a.due_by_s, 0.0);
    late_s[i] = over_s + std::min(a.steepness * over_s, allowed_s);
    total_s[i] =
        wait_s[i] + transfer_s[i] + charged_s[i] + harm_s[i] + balance_s[i] + surplus_s[i] + late_s[i];
  }
  baton_least(total_s, num, draws, places, draw, num_least, least);
  for (int64_t at = 0; at < num_least; at++) {
    const int64_t place = least[at];
    for (int64_t row = 0; row < NUM_TERMS; row++) told[row * num_least + at] = out[row * num + place];
    told[NUM_TERMS * num_least + at] = held[place];
    told[(NUM_TERMS + 1) * num_least + at] = fetch_s ? fetch_s[place] : 0.0;
  }
}

}
