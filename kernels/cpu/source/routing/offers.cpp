// Finds the prompt, among those waiting for other replicas, that gains most at a replica for which none waits. The
// definition is in router/offers.py, and chooses the same prompt.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "columns.h"
#include "holder_table.h"

namespace {

using namespace baton;

// Rows of `facts`, the constant fields of a waiting prompt, as in router/table/columns.py.
enum LineFact { NUMBER, NUM_TOKENS, NUM_FETCHED, NAMES, NUM_NAMES };

// A prompt that may move.
struct Offer {
  double over_s;     // when it would be over in its line
  int64_t in_line;   // its place in the columns of those who wait
  int64_t order;     // of equal gains the smaller wins
};

}  // namespace

extern "C" {

// The replica for which no prompt waits; filled in by router/offers.py.
struct BatonTaker {
  double now, late_s, busy_s;
  double num_behind;  // prompts in line, per replica: those whom more work here delays
  double step_s, token_s, pair_s, max_chunk, tokens_per_s;
  double block_size;
};

// All waiting prompts, one column each: for which row, when it is due, how long it takes there; [rows of
// LineFact][stride].
struct BatonLine {
  const int64_t* rows;
  const double *due_s, *work_s;
  const int64_t* facts;
  int64_t stride, num;
};

// The column of the prompt that gains most by moving to the taker, whose blocks are those of `slot` in `table`; -1 if
// none gains. `numbers`: [rows of Column][stride]. `places`: the rows of the `num` replicas in whose lines to look;
// null: the first `num` of `num_rows`. Of each line the first `max_offered` are considered, and of those the
// `max_looked_at` with the longest wait are looked up.
int64_t baton_best_offer(const BatonTaker* taker, const double* numbers, int64_t stride, int64_t num_rows,
                         const int64_t* places, int64_t num, const BatonLine* line, int64_t max_offered,
                         int64_t max_looked_at, const HolderTable* table, uint32_t slot) {
  const BatonTaker& t = *taker;
  const auto fact = [&](LineFact which, int64_t in_line) { return line->facts[which * line->stride + in_line]; };
  std::vector<int64_t> place_by_row(size_t(num_rows), -1);
  for (int64_t place = 0; place < num; place++) place_by_row[size_t(places ? places[place] : place)] = place;
  std::vector<int64_t> ends(size_t(num) + 1);  // by place: where its line ends among all of them
  const auto place_of = [&](int64_t in_line) { return place_by_row[size_t(line->rows[in_line])]; };
  for (int64_t j = 0; j < line->num; j++)
    if (place_of(j) >= 0) ends[size_t(place_of(j) + 1)]++;
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<int64_t> lines(size_t(ends.back()));  // who waits, one line after another
  for (int64_t j = 0; j < line->num; j++)
    if (place_of(j) >= 0) lines[size_t(ends[size_t(place_of(j))]++)] = j;
  const auto goes_before = [&](int64_t one, int64_t other) {
    const double its_s = line->due_s[one], others_s = line->due_s[other];
    return its_s < others_s || (its_s == others_s && fact(NUMBER, one) < fact(NUMBER, other));
  };
  std::vector<Offer> offers;
  offers.reserve(lines.size());
  for (int64_t place = 0, begin = 0; place < num; begin = ends[size_t(place++)]) {
    const int64_t end = ends[size_t(place)];
    if (begin == end) continue;
    std::stable_sort(&lines[size_t(begin)], &lines[0] + end, goes_before);
    double over_s = busy_s(numbers, stride, places ? places[place] : place, t.now, t.late_s);
    for (int64_t at = begin; at < std::min(end, begin + max_offered); at++) {
      over_s += line->work_s[lines[size_t(at)]];
      offers.push_back({over_s, lines[size_t(at)], int64_t(offers.size())});
    }
  }
  const bool are_many = int64_t(offers.size()) > max_looked_at;
  const auto is_behind = [](const Offer& one, const Offer& other) {  // of those that wait longest first
    return one.over_s < other.over_s || (one.over_s == other.over_s && one.order > other.order);
  };
  std::make_heap(offers.begin(), offers.end(), is_behind);
  const Pace pace = {t.step_s, t.token_s, t.pair_s, t.max_chunk, t.tokens_per_s};
  int64_t best = -1, bests_order = -1;
  double best_s = t.busy_s;
  for (int64_t looked_at = 0; !offers.empty() && looked_at < max_looked_at; looked_at++) {
    std::pop_heap(offers.begin(), offers.end(), is_behind);
    const Offer offer = offers.back();
    offers.pop_back();
    if (offer.over_s <= t.busy_s || offer.over_s < best_s) break;  // nobody gains more than all of its wait
    const auto* names = reinterpret_cast<const Name*>(fact(NAMES, offer.in_line));
    const int64_t num_names = fact(NUM_NAMES, offer.in_line), num_tokens = fact(NUM_TOKENS, offer.in_line);
    uint32_t num_blocks = 0;
    baton_holders_leading_of(table, slot, &names, &num_names, 1, &num_blocks);
    const int64_t num_cached = std::min(int64_t(num_blocks * t.block_size), num_tokens - 1);
    const double num_held = double(std::max(num_cached, fact(NUM_FETCHED, offer.in_line)));
    const double here_s = baton::work_s(pace, double(num_tokens), num_held);
    const double extra_s = std::max(here_s - line->work_s[offer.in_line], 0.0);
    const double gain_s = offer.over_s - here_s - extra_s * t.num_behind;
    const int64_t order = are_many ? looked_at : offer.order;
    if (gain_s > best_s || (gain_s == best_s && order < bests_order))
      best = offer.in_line, bests_order = order, best_s = gain_s;
  }
  return best;
}

}
