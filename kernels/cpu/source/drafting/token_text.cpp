// Growing texts of tokens with look-up of what followed given tokens earlier; see kernels/drafting/token_text.py, where
// it is defined in Python.
//
//   place          0  1  2  3  4  5  6        a place is before its token; pairs stand before places
//   token          a  b  c  a  b  d  -
//   table of pairs        ab -> 5, then 2     the last place after each pair, and `before` each place
//                         bc -> 3  ca -> 4    the one before it
//
// Not thread-safe: callers must serialize their calls.
#include <algorithm>
#include <cstdint>
#include <vector>

// Settings of a look-up; see kernels/drafting/token_text.py.
struct BatonLookUp {
  int64_t max_match, max_places;
  double min_share, sure_length;
};

namespace {

using Token = int32_t;
using Place = int32_t;

constexpr Token GAP = -1;       // between texts: no token
constexpr Place NOWHERE = 0;    // no pair stands before place 2
constexpr int64_t MIN_SLOTS = 64;
constexpr int64_t MAX_MATCHES = 64;  // of all texts that are asked at once

struct End;

struct TokenText {
  std::vector<Token> tokens;
  std::vector<Place> before{NOWHERE, NOWHERE};  // by place
  std::vector<Place> slots = std::vector<Place>(MIN_SLOTS, NOWHERE);
  int64_t num_pairs = 0;

  int64_t size() const { return int64_t(tokens.size()); }

  // The table slot of the last place after a pair, or a free one.
  Place& slot(Token first, Token second) {
    uint64_t hash = (uint64_t(uint32_t(first)) << 32 | uint32_t(second)) * 0x9E3779B97F4A7C15u;
    const uint64_t mask = slots.size() - 1;
    for (uint64_t at = hash >> 32 ^ hash >> 51;; at++) {
      Place& place = slots[at & mask];
      if (place == NOWHERE || (tokens[place - 2] == first && tokens[place - 1] == second)) return place;
    }
  }

  void add(Token token) {
    tokens.push_back(token);
    const Place place = Place(size());
    if (place < 2) return;
    if (2 * num_pairs >= int64_t(slots.size())) widen();
    Place& last = slot(tokens[place - 2], token);
    num_pairs += last == NOWHERE;
    before.push_back(last);
    last = place;
  }

  void widen() {
    std::vector<Place> old(2 * slots.size(), NOWHERE);
    old.swap(slots);
    for (const Place place : old)
      if (place != NOWHERE) slot(tokens[place - 2], tokens[place - 1]) = place;
  }

  // The number of tokens before `place` that equal those before the end.
  int64_t match(Place place, const End& end, int64_t max_match) const;
};

// The last tokens to match: given ones, or those of the text itself.
struct End {
  const Token* tokens;
  int64_t num;

  End(const TokenText& text, const Token* last, int64_t num_last)
      : tokens(last ? last : text.tokens.data()), num(last ? num_last : text.size()) {}
};

int64_t TokenText::match(Place place, const End& end, int64_t max_match) const {
  const int64_t most = std::min({max_match, int64_t(place), end.num});
  int64_t length = 0;
  while (length < most && tokens[place - 1 - length] == end.tokens[end.num - 1 - length]) length++;
  return length;
}

// The tokens that follow a match, up to the longest draft, and the length of the match.
struct Match {
  const Token* behind;
  int64_t num_behind, length;
};

struct Matches {
  Match all[MAX_MATCHES];
  int64_t num = 0;

  void add(TokenText& text, const End& end, const BatonLookUp& how, int64_t max_tokens) {
    if (end.num < 2) return;
    Place place = text.slot(end.tokens[end.num - 2], end.tokens[end.num - 1]);
    for (int64_t left = how.max_places; left > 0 && place != NOWHERE && num < MAX_MATCHES;
         place = text.before[place]) {
      if (place == text.size()) continue;  // no token stands there yet
      all[num++] = {&text.tokens[place], std::min(max_tokens, text.size() - place),
                    text.match(place, end, how.max_match)};
      left--;
    }
  }

  template <typename Keep>
  void keep_if(Keep keep) {
    num = std::remove_if(all, all + num, [&](const Match& one) { return !keep(one); }) - all;
  }
};

bool are_alike(const Match& one, const Match& other) {
  return std::equal(one.behind, one.behind + one.num_behind, other.behind, other.behind + other.num_behind);
}

// The token at offset `at` of a match; GAP if the text has ended.
Token token_at(const Match& match, int64_t at) { return at < match.num_behind ? match.behind[at] : GAP; }

// The token with the most weight, the first one found on a tie, and its share of the total.
Token heaviest(const Matches& left, int64_t at, double& share) {
  Token tokens[MAX_MATCHES];
  int64_t weights[MAX_MATCHES], num = 0, total = 0;
  for (int64_t i = 0; i < left.num; i++) {
    const Token token = token_at(left.all[i], at);
    const int64_t place = std::find(tokens, tokens + num, token) - tokens;
    if (place == num) {
      tokens[num] = token;
      weights[num++] = 0;
    }
    weights[place] += left.all[i].length;
    total += left.all[i].length;
  }
  const int64_t best = std::max_element(weights, weights + num) - weights;
  share = double(weights[best]) / double(total);
  return tokens[best];
}

}  // namespace

extern "C" {

TokenText* baton_text_new() { return new TokenText; }

void baton_text_free(TokenText* text) { delete text; }

void baton_text_extend(TokenText* text, const int32_t* tokens, int64_t num_tokens) {
  for (int64_t i = 0; i < num_tokens; i++) text->add(tokens[i]);
}

// Writes the last `num_tokens` tokens; the text must have as many.
void baton_text_last(const TokenText* text, int64_t num_tokens, int32_t* tokens) {
  std::copy(text->tokens.end() - num_tokens, text->tokens.end(), tokens);
}

// Among the last places that follow the last two tokens of `last` (or of the text, if null): the one after the longest
// match, the latest on a tie, with the length of the match in `length`. 0 if there is none.
int64_t baton_text_longest(TokenText* text, const int32_t* last, int64_t num_last,
                           const BatonLookUp* how, int64_t* length) {
  const End end(*text, last, num_last);
  Matches found;
  found.add(*text, end, *how, 1);
  const Match* best = nullptr;
  for (int64_t i = 0; i < found.num; i++)
    if (!best || found.all[i].length > best->length) best = &found.all[i];
  if (!best) return NOWHERE;
  *length = best->length;
  return best->behind - text->tokens.data();
}

// The continuation by majority of the places that follow the same tokens, here and in `other`, if not null. Returns the
// number of tokens, and writes each with its confidence.
int64_t baton_text_agreed(TokenText* text, TokenText* other, const int32_t* last, int64_t num_last,
                          const BatonLookUp* how, int64_t max_tokens, int32_t* tokens, double* confidences) {
  const End end(*text, last, num_last);
  Matches left;
  for (TokenText* each : {text, other})
    if (each) left.add(*each, end, *how, max_tokens);
  int64_t longest = 0;
  for (int64_t i = 0; i < left.num; i++) longest = std::max(longest, left.all[i].length);
  left.keep_if([&](const Match& one) { return 2 * one.length > longest; });
  const double sure = std::min(1.0, double(longest) / how->sure_length);
  int64_t num = 0;
  while (left.num && num < max_tokens) {
    const Match first = left.all[0];
    if (std::all_of(left.all, left.all + left.num, [&](const Match& one) { return are_alike(one, first); })) {
      while (token_at(first, num) != GAP) {
        tokens[num] = first.behind[num];
        confidences[num++] = sure;
      }
      break;
    }
    double share;
    const Token best = heaviest(left, num, share);
    if (best == GAP || share < how->min_share) break;
    left.keep_if([&](const Match& one) { return token_at(one, num) == best; });
    tokens[num] = best;
    confidences[num++] = share * sure;
  }
  return num;
}

}
