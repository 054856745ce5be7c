// Chooses the tokens that each new token attends to; see kernels/latent_attention/choose_tokens.py.
//
// A token that sees no more keys than are chosen takes all of them. For the others, scores are computed in runs of
// keys: with few tokens and many keys, all threads take some, and choose when all scores are there; for prompts each
// thread scores and chooses for its own tokens. Scores are the same either way.
#include "choose_tokens.h"

namespace {

constexpr int64_t RUN = 512;                  // keys
constexpr int64_t SHARED_BYTES = 64ll << 20;  // of scores

template <typename T>
struct ChooseTokensArgs : Args {
  FIELDS(Args,
         const T* q;                   // [T][N][D]
         const float* weights;         // [T][N]
         const T* arena;               // [blocks][S][D]
         const int64_t* positions;     // [T]
         const int64_t* query_starts;  // [R + 1]
         const int64_t* block_tables;  // [R][table_stride]
         int64_t* slots;               // [T][num_chosen]
         int64_t num_heads;            // N
         int64_t width;                // D
         int64_t block_size;           // S
         int64_t table_stride;
         int64_t num_chosen;
         double key_scale;             // of q . k
         double head_scale;)           // of the weights
};

template <typename T>
class Choosing {
 public:
  Choosing(const ChooseTokensArgs<T>& args, const Pass& pass, Work& work)
      : args_(args),
        work_(work),
        shape_{args.num_heads, args.width, args.block_size, float(args.key_scale), float(args.head_scale)},
        most_(args.num_chosen),
        num_tokens_(row_count(args, pass)),
        num_requests_(pass.num_requests),
        positions_(args.positions),
        query_starts_(args.query_starts) {
    for (int64_t token = 0; token < num_tokens_; token++) longest_ = std::max(longest_, seen(token));
  }

  void run() {
    const int64_t bytes = num_tokens_ * longest_ * int64_t(sizeof(float));
    if (work_.num_threads() > 1 && longest_ > most_ && bytes <= SHARED_BYTES)
      run_together(static_cast<float*>(work_.shared(size_t(bytes))));
    else
      run_apart();
  }

 private:
  void run_together(float* scores) {
    const int64_t runs = (longest_ + RUN - 1) / RUN;
    float* own = scratch();
    Span span;
    while (work_.take(num_tokens_ * runs, 1, span))
      for (int64_t item = span.begin; item < span.end; item++) {
        const int64_t token = item / runs, first = item % runs * RUN, end = std::min(seen(token), first + RUN);
        if (seen(token) > most_ && first < end) score(token, first, end, own, scores + token * longest_);
      }
    work_.barrier();
    while (work_.take(num_tokens_, 1, span))
      for (int64_t token = span.begin; token < span.end; token++)
        choose(token, scores + token * longest_, scratch());
  }

  void run_apart() {
    float* own = scratch();
    float* scores = own + longest_;
    Span span;
    while (work_.take(num_tokens_, 1, span))
      for (int64_t token = span.begin; token < span.end; token++) {
        if (seen(token) > most_) score(token, 0, seen(token), own + 2 * longest_, scores);
        choose(token, scores, own);
      }
  }

  // Working memory for two copies of scores, a query and some keys.
  float* scratch() {
    const size_t items = size_t(2 * longest_ + HEADS_AT_ONCE + KEYS_AT_ONCE * shape_.width) + IndexQuery::floats(shape_);
    return static_cast<float*>(work_.scratch(items * sizeof(float)));
  }

  void score(int64_t token, int64_t first, int64_t end, float* room, float* scores) const {
    IndexQuery query(room, shape_);
    const T* q = args_.q + token * shape_.num_heads * shape_.width;
    query.load(q, args_.weights + token * shape_.num_heads, shape_);
    score_run(query, args_.arena, table(token), first, end, shape_,
              room + IndexQuery::floats(shape_), scores);
  }

  void choose(int64_t token, const float* scores, float* room) const {
    const int64_t count = std::min(seen(token), most_), size = shape_.block_size;
    const int64_t* blocks = table(token);
    int64_t* slots = args_.slots + token * most_;
    const auto take = [&](int64_t place, int64_t position) {
      slots[place] = blocks[position / size] * size + position % size;
    };
    if (seen(token) > most_) return choose_best(scores, seen(token), most_, room, take);
    for (int64_t position = 0; position < count; position++) take(position, position);
  }

  int64_t seen(int64_t token) const { return positions_[token] + 1; }

  const int64_t* table(int64_t token) const {
    const int64_t* after = std::upper_bound(query_starts_, query_starts_ + num_requests_ + 1, token);
    return args_.block_tables + (after - query_starts_ - 1) * args_.table_stride;
  }

  const ChooseTokensArgs<T>& args_;
  Work& work_;
  const IndexShape shape_;
  const int64_t most_, num_tokens_, num_requests_;
  const int64_t *positions_, *query_starts_;
  int64_t longest_ = 1;  // tokens that any of them sees
};

}  // namespace

OPERATOR(choose_tokens_f32, ChooseTokensArgs<float>) { Choosing<float>(args, pass, work).run(); }
OPERATOR(choose_tokens_bf16, ChooseTokensArgs<bf16>) { Choosing<bf16>(args, pass, work).run(); }
