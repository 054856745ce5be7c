// Draws from the tokens that top-k and top-p keep while not all tokens are known: the best of those seen so far are
// kept, and what is certain about the whole row is told from them. Scores are relative to the best one, which is 0.
#pragma once

#include "noisy_winner.h"
#include "score_floor.h"

struct KeptToken {
  float score;
  float weight;  // e^score
  int64_t token;
  double value;  // score + noise
};

class KeptTokens {
 public:
  static constexpr int64_t MOST_AT_ONCE = 32;
  static constexpr size_t ROOM_BYTES = MAX_LISTED * (sizeof(KeptToken) + sizeof(Weighed));

  // `top_k` is 0 (off) or at most MAX_LISTED - MOST_AT_ONCE; `room` has ROOM_BYTES.
  KeptTokens(void* room, int64_t top_k, double top_p, float least)
      : tokens_(static_cast<KeptToken*>(room)),
        listed_(reinterpret_cast<Weighed*>(tokens_ + MAX_LISTED)),
        top_k_(top_k),
        top_p_(top_p),
        least_(least) {}

  // No token with a score below it is among the k best.
  float floor() const { return floor_; }

  // No token with a score below it is drawn.
  float least() const { return std::max(floor_, least_); }

  void meet(int64_t token, float score, uint32_t word) {
    if (score < floor_) return;
    tokens_[count_++] = {score, exp(splat(score))[0], token, double(score) + noise_of(word)};
  }

  // Drops what is not among the k best, after at most MOST_AT_ONCE tokens more; false if there is no room for others.
  bool settle() {
    if (top_k_ && count_ >= top_k_) {
      const auto is_better = [](const KeptToken& a, const KeptToken& b) { return a.score > b.score; };
      std::nth_element(tokens_, tokens_ + top_k_ - 1, tokens_ + count_, is_better);
      floor_ = tokens_[top_k_ - 1].score;
      const auto is_below = [=](const KeptToken& each) { return each.score < floor_; };
      count_ = std::remove_if(tokens_, tokens_ + count_, is_below) - tokens_;
    }
    return count_ + MOST_AT_ONCE <= MAX_LISTED;
  }

  // The best sum of score and noise so far. One token at least, the best, must have been met.
  const KeptToken& winner() const { return winner_from(least_); }

  // Whether top-k and top-p keep `token`, whatever the scores of tokens not met, none of which is above `unknown`: all
  // that are better than the token have been met, and those of the k best that have been met have so much weight that
  // the better ones do not reach top-p. Further tokens can only add to that weight.
  bool is_kept(const KeptToken& token, float unknown) const {
    constexpr double ROUNDED_AWAY = 1e-5;  // relative; more than float32 rounds in a weight
    if (!(token.score > unknown)) return false;
    if (top_p_ == 1) return true;
    double better = 0, known = 0;
    for (int64_t i = 0; i < count_; i++) {
      if (tokens_[i].score > token.score) better += tokens_[i].weight;
      if (tokens_[i].score > floor_) known += tokens_[i].weight;  // of those at the floor, some may yet be dropped
    }
    return better * (1 + ROUNDED_AWAY) < top_p_ * known;
  }

  // The drawn token once all tokens with a score of at least `floor()` have been met.
  int64_t drawn() const {
    float floor = least();
    if (top_p_ < 1) {
      for (int64_t i = 0; i < count_; i++) listed_[i] = {tokens_[i].score, 0};
      const WeighedList list{listed_, count_};
      sort_best_first(list);
      floor = std::max(floor, nucleus_floor(list, top_p_));
    }
    return winner_from(floor).token;
  }

 private:
  const KeptToken& winner_from(float floor) const {
    const KeptToken* best = nullptr;
    for (int64_t i = 0; i < count_; i++) {
      const KeptToken& each = tokens_[i];
      if (each.score < floor) continue;
      const bool is_better = !best || each.value > best->value || (each.value == best->value && each.token < best->token);
      if (is_better) best = &each;
    }
    return *best;
  }

  KeptToken* tokens_;
  Weighed* listed_;
  int64_t count_ = 0;
  int64_t top_k_;
  double top_p_;
  float least_;
  float floor_ = -INFINITE;
};
