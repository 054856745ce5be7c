// The search of one row for its best or its drawn token between bounds of its logits; see
// kernels/products/vocabulary_screen.py.
#pragma once

#include <cstring>

#include "kept_tokens.h"
#include "linear_panels.h"

constexpr float LARGEST_SUM = 1e37f;
constexpr int32_t NOT_SCREENED = -1;
constexpr int64_t MAX_TOP_K = 256;

template <typename T>
struct FindTokensArgs : Args {
  FIELDS(Args,
         const T* x;                // [rows][width]
         const T* weight;           // packed
         const float* bounds;       // [rows][2]
         const float* highest;      // [rows][panels]
         const float* lowest;       // [rows][panels]
         const float* temperature;  // [rows] or null: of those above 0, a token is drawn with noise
         const int64_t* top_k;      // [rows]: 0 is off
         const float* top_p;        // [rows]: 1 is off
         const float* least;        // [rows]: score relative to the best below which no token is drawn
         const int64_t* streams;    // [rows][4]
         int64_t* tokens;           // [rows]: NOT_SCREENED where too many panels are left, or nothing bounds the logits
         int64_t* nums_computed;    // [rows]: how many panels were computed; those computed twice count twice
         int64_t num_outputs;
         int64_t num_panels;
         int64_t width;
         int64_t stride;
         int64_t most;     // panels of a row that are computed
         double longest;)  // row of the weight
};

struct BestLogit {
  float score = -INFINITE;
  int64_t token = 0;

  void meet(int64_t other, float its_score) {
    if (its_score > score || (its_score == score && other < token)) score = its_score, token = other;
  }
};

static inline int64_t largest_of(const float* values, int64_t count) {
  int64_t found = 0;
  for (int64_t i = 1; i < count; i++)
    if (values[i] > values[found]) found = i;
  return found;
}

// The panels of a row that have not been computed, those with the largest upper bound first.
class PanelsLeft {
 public:
  static size_t room_bytes(int64_t num_panels) { return size_t(num_panels) * (sizeof(Bound) + 1); }

  PanelsLeft(void* room, const float* highest, int64_t num_panels)
      : bounds_(static_cast<Bound*>(room)),
        are_computed_(reinterpret_cast<uint8_t*>(bounds_ + num_panels)),
        count_(num_panels) {
    memset(are_computed_, 0, size_t(num_panels));
    for (int64_t panel = 0; panel < num_panels; panel++) bounds_[panel] = {highest[panel], int32_t(panel)};
    std::make_heap(bounds_, bounds_ + count_);
  }

  bool is_computed(int64_t panel) const { return are_computed_[panel]; }

  void set_computed(int64_t panel) { are_computed_[panel] = true; }

  // The first of them, which then is no longer among them, or -1.
  int64_t pop() {
    while (count_) {
      std::pop_heap(bounds_, bounds_ + count_);
      const int64_t panel = bounds_[--count_].panel;
      if (!is_computed(panel)) return panel;
    }
    return -1;
  }

 private:
  struct Bound {
    float highest;
    int32_t panel;
    bool operator<(const Bound& other) const { return highest < other.highest; }
  };

  Bound* bounds_;
  uint8_t* are_computed_;
  int64_t count_;
};

template <typename T>
class TokenSearch {
 public:
  static size_t room_bytes(int64_t num_panels) { return KeptTokens::ROOM_BYTES + PanelsLeft::room_bytes(num_panels); }

  // `room` has `room_bytes` for the panels of the row.
  TokenSearch(const FindTokensArgs<T>& args, const Factors<T>& factors, int64_t row, void* room)
      : args_(args), factors_(factors), row_(row), highest_(args.highest + row * args.num_panels), room_(room) {}

  int64_t run() {
    if (!(args_.bounds[2 * row_] * args_.longest < LARGEST_SUM)) return NOT_SCREENED;  // nor if it is NaN
    const bool is_drawn = args_.temperature && args_.temperature[row_] > 0;
    if (is_drawn && args_.top_k[row_] < args_.num_outputs) top_k_ = args_.top_k[row_];
    if (top_k_ > MAX_TOP_K) return NOT_SCREENED;
    BestLogit best;
    if (!find_best(best)) return NOT_SCREENED;
    if (!is_drawn) return best.token;
    return top_k_ || args_.top_p[row_] < 1 ? draw_kept(best) : draw(best);
  }

  int64_t num_computed() const { return num_computed_; }

 private:
  // The panel with the largest lower bound comes first: it nearly always has the best token, whose logit then rules
  // out more of the others than its bound does.
  bool find_best(BestLogit& best) {
    const auto meet = [&](int64_t token, float logit) { best.meet(token, logit); };
    const int64_t first = largest_of(args_.lowest + row_ * args_.num_panels, args_.num_panels);
    if (!compute(first, first, meet)) return false;
    const auto next_from = [&](int64_t panel) {
      while (panel < args_.num_panels && (highest_[panel] < best.score || panel == first)) panel++;
      return panel;
    };
    for (int64_t panel = next_from(0), next; panel < args_.num_panels; panel = next_from(next)) {
      next = next_from(panel + 1);
      if (!compute(panel, next < args_.num_panels ? next : panel, meet)) return false;
    }
    return true;
  }

  // As draw_token.cpp draws from all logits without top-k and top-p.
  int64_t draw(const BestLogit& best) {
    const Stream stream = stream_of(args_.streams, row_);
    u32x16 words[4];
    words_of(stream, best.token / TOKENS_AT_ONCE * TOKENS_AT_ONCE, words);
    Winner winner{best.token, noise_of(word_of(words, best.token % TOKENS_AT_ONCE))};
    const float least = args_.least[row_];
    const auto meet = [&](int64_t panel, int64_t next, const u32x16* own) {
      return compute(panel, next, [&](int64_t token, float logit) {
        const float score = relative(logit, best);
        if (score >= least) winner.meet(token, double(score) + noise_of(word_of(own, token % PANEL)));
      });
    };
    const auto needed = [&] { return winner.needed(); };
    return meet_rivals(best, [=] { return least; }, needed, meet) ? winner.token : NOT_SCREENED;
  }

  // As draw_token.cpp draws from all logits with top-k or top-p. Panels are computed from the highest on, until the
  // best sum of score and noise so far is that of a token that is certainly kept, and then those with a token that may
  // have a better sum. If one has, this is repeated for that token. With top-k it ends when the k best are known, at
  // the latest; with top-p alone, when as many are known as there is room for.
  int64_t draw_kept(const BestLogit& best) {
    const Stream stream = stream_of(args_.streams, row_);
    KeptTokens kept(room_, top_k_, double(args_.top_p[row_]), args_.least[row_]);
    PanelsLeft left(static_cast<char*>(room_) + KeptTokens::ROOM_BYTES, highest_, args_.num_panels);
    const auto meet = [&](int64_t panel, int64_t next, const u32x16* own) {
      if (left.is_computed(panel)) return true;
      left.set_computed(panel);
      const bool is_allowed = compute(panel, next, [&](int64_t token, float logit) {
        kept.meet(token, relative(logit, best), word_of(own, token % PANEL));
      });
      return kept.settle() && is_allowed;
    };
    u32x16 words[4];
    for (int64_t panel = left.pop(); panel >= 0;) {
      const float unknown = relative(highest_[panel], best);
      if (unknown < kept.floor()) break;
      if (unknown < 0) {
        const KeptToken winner = kept.winner();
        if (kept.is_kept(winner, unknown)) {
          const float needed = float(winner.value) - ROUNDED_AWAY;
          if (!meet_rivals(best, [&] { return kept.least(); }, [=] { return needed; }, meet)) return NOT_SCREENED;
          if (kept.winner().token == winner.token) return winner.token;
        }
      }
      const int64_t first = panel / PANELS_AT_ONCE * PANELS_AT_ONCE, next = left.pop();
      words_of(stream, first * PANEL, words);
      if (!meet(panel, next < 0 ? panel : next, words + 2 * (panel - first))) return NOT_SCREENED;
      panel = next;
    }
    return top_k_ ? kept.drawn() : NOT_SCREENED;
  }

  // A panel that may have a token to be drawn, and the words of its noise.
  struct Rival {
    int64_t panel;
    float most;  // no sum of score and noise is above it
    u32x16 words[2];
  };

  // Calls `meet(panel, next, words)` for all panels that may have a token with a score of at least `least()` and a sum
  // of score and noise of at least `needed()`; false once `meet` is. Noise is that of 64 tokens, two panels, at once.
  template <typename Least, typename Needed, typename Meet>
  bool meet_rivals(const BestLogit& best, const Least& least, const Needed& needed, const Meet& meet) {
    const Stream stream = stream_of(args_.streams, row_);
    u32x16 words[4];
    Rival before{-1, 0, {}};
    const auto meet_before = [&](int64_t next) {
      return before.panel < 0 || before.most < needed() || meet(before.panel, next, before.words);
    };
    for (int64_t first = 0; first < args_.num_panels; first += PANELS_AT_ONCE) {
      const int64_t end = std::min(first + PANELS_AT_ONCE, args_.num_panels);
      if (relative(highest_[largest_in(first, end)], best) < least()) continue;
      words_of(stream, first * PANEL, words);
      for (int64_t panel = first; panel < end; panel++) {
        const u32x16* own = words + 2 * (panel - first);
        const float highest = relative(highest_[panel], best);
        const float most = highest + largest(larger(most_noise_of(own[0]), most_noise_of(own[1])));
        if (highest < least() || most < needed()) continue;
        if (!meet_before(panel)) return false;
        before = {panel, most, {own[0], own[1]}};
      }
    }
    return meet_before(before.panel);
  }

  static constexpr int64_t PANELS_AT_ONCE = TOKENS_AT_ONCE / PANEL;

  static uint32_t word_of(const u32x16* words, int64_t lane) { return words[lane / 16][lane % 16]; }

  float relative(float logit, const BestLogit& best) const { return (logit - best.score) / args_.temperature[row_]; }

  int64_t largest_in(int64_t begin, int64_t end) const { return begin + largest_of(highest_ + begin, end - begin); }

  // Gives the logits of a panel to `meet(token, logit)`; false if they are more than may be computed. Panels lie apart,
  // so that `next`, the one to be computed next, is prefetched here.
  template <typename Meet>
  bool compute(int64_t panel, int64_t next, const Meet& meet) {
    const int64_t count = std::min(PANEL, args_.num_outputs - panel * PANEL);
    const auto finish = [&](int64_t, int64_t, const float* logits) {
      for (int64_t i = 0; i < count; i++) meet(panel * PANEL + i, logits[i]);
    };
    const Prefetch<2> ahead{reinterpret_cast<const char*>(factors_.panel(next)), next == panel ? 0 : STEP_BYTES};
    multiply_panel(factors_, {row_, row_ + 1}, 1, panel, ahead, finish);
    return ++num_computed_ <= args_.most;
  }

  const FindTokensArgs<T>& args_;
  const Factors<T>& factors_;
  int64_t row_;
  const float* highest_;
  void* room_;
  int64_t top_k_ = 0;
  int64_t num_computed_ = 0;
};
