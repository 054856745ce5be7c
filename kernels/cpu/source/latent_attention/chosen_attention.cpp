// Attention of each token to its chosen latents; see kernels/latent_attention/chosen_attention.py.
//
// For the attention of mla_attention.cpp each token is a request of its own, and its slots are blocks of one token. So
// a token for which all visible tokens were chosen gets the same bits as there.
//
// The number of chosen tokens is derived from the token's position, which stays in memory for the whole pass. It must
// not be read from another operator's output: the tape reuses that memory, and a thread that comes late, when all is
// done, would derive other items with another number of barriers, and be in a wrong stage for the rest of the tape.
#include <numeric>
#include <vector>

#include "attending.h"
#include "attention_latents.h"

namespace {

// 0, 1, 2, ... `count`, in memory of this thread.
const int64_t* counting(int64_t count) {
  static thread_local std::vector<int64_t> numbers;
  if (int64_t(numbers.size()) <= count) {
    numbers.resize(size_t(count + 1));
    std::iota(numbers.begin(), numbers.end(), int64_t(0));
  }
  return numbers.data();
}

// The number of chosen tokens of each token, in memory of this thread.
const int64_t* counts_of(const int64_t* positions, int64_t num_tokens, int64_t most) {
  static thread_local std::vector<int64_t> counts;
  counts.resize(size_t(num_tokens));
  for (int64_t token = 0; token < num_tokens; token++)
    counts[size_t(token)] = std::min(positions[token] + 1, most);
  return counts.data();
}

template <typename T>
struct ChosenArgs : LatentArgs<T> {
  FIELDS(LatentArgs<T>,
         const int64_t* positions;  // [T]
         const int64_t* slots;      // [T][num_chosen]
         int64_t num_chosen;)
};

template <typename T>
struct ChosenProblem : LatentProblem<T> {
  ChosenProblem(const ChosenArgs<T>& args, const Pass& pass)
      : LatentProblem<T>(args, requests_of(args, row_count(args, pass))) {}

  static LatentRequests requests_of(const ChosenArgs<T>& args, int64_t num_tokens) {
    return {.query_starts = counting(num_tokens),
            .context_lens = counts_of(args.positions, num_tokens, args.num_chosen),
            .block_tables = args.slots,
            .count = num_tokens,
            .table_stride = args.num_chosen,
            .block_size = 1};
  }
};

}  // namespace

OPERATOR(chosen_attention_f32, ChosenArgs<float>) { attend<ChosenProblem<float>>(args, pass, work); }
OPERATOR(chosen_attention_bf16, ChosenArgs<bf16>) { attend<ChosenProblem<bf16>>(args, pass, work); }
