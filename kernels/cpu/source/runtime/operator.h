// What every operator sees: its arguments, the pass it is part of, and its share of the work.
//
//   OPERATOR(rms_norm_f32) {
//     Span rows;
//     while (work.take(row_count(args, pass), 4, rows))
//       for (int64_t row = rows.begin; row < rows.end; row++) ...
//   }
//
// Several threads call an operator, and take spans of its items as they come free. All that is written
// must belong to a span that was taken: an operator is done when all its items are, and is not waited
// for by a thread that has none. A thread that the system put aside, or that has yet to wake up, may
// come when all is over; it finds nothing to take. Who computes an item has no influence on what
// comes out. Operators in turn need no barrier of their own: the tape has one between any two.
//
// The C ABI is all there is, so that the library needs no headers of torch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// How large one forward pass is: all that changes from pass to pass of a tape. The tensors that describe
// the pass (tokens, positions, block tables ...) stay where they are and are written anew.
struct Pass {
  int64_t num_tokens;
  int64_t num_outputs;   // tokens whose outputs are wanted
  int64_t num_requests;
};

// Rows that are as many as a pass has, so that a tape runs passes of any size.
constexpr int64_t ROWS_TOKENS = -1;
constexpr int64_t ROWS_OUTPUTS = -2;

struct Args {
  int64_t rows;  // a number, or one of the above
  const void* in[12];
  void* out[4];
  int64_t i[12];
  double f[4];
};

struct Span {
  int64_t begin, end;
};

struct Team;

class Work {
 public:
  Work(Team& team, int thread, int num_threads, int32_t stage)
      : team_(team), thread_(thread), num_threads_(num_threads), stage_(stage) {}

  // The next `grain` of `total` items, fewer at the end; false when all are taken. Each thread begins
  // in a part of its own, so that it reads memory in order, and then helps the others.
  //
  // All threads must name the same numbers, in at most one loop between two barriers.
  bool take(int64_t total, int64_t grain, Span& span) {
    if (num_threads_ > 1) return take_shared(total, grain, span);
    if (has_taken_) return false;
    has_taken_ = true;
    span = {0, total};
    return total > 0;
  }

  // Until all items are done: what was written for them can be read, and others can be taken. What a
  // thread keeps for itself is of no use behind it: who takes what is decided anew.
  void barrier();

  int thread() const { return thread_; }
  int num_threads() const { return num_threads_; }

  // Memory of this thread, 64-byte aligned, kept from call to call; what it holds is anything.
  void* scratch(size_t bytes);

  // Memory of all threads, 64-byte aligned, for what passes from one stage of an operator to the next; all
  // must ask for the same, and before it the memory holds anything.
  void* shared(size_t bytes);

  // The rest is for whoever runs operators. Between barriers lies a stage; `report` tells what this
  // thread did of it, and is true for the one with whom all is done, who then has to `advance`.
  bool report();
  void advance();
  void begin_stage();
  int32_t stage() const { return stage_; }

 private:
  bool take_shared(int64_t total, int64_t grain, Span& span);

  Team& team_;
  int thread_;
  int num_threads_;
  int32_t stage_;
  int64_t num_grains_ = 0;  // of this stage, and those of them that this thread has done
  int64_t num_done_ = 0;
  bool has_taken_ = false;  // all, being alone
};

using Operator = void (*)(const Args&, const Pass&, Work&);

#define OPERATOR(name) extern "C" void name(const Args& args, const Pass& pass, Work& work)

static inline int64_t row_count(const Args& args, const Pass& pass) {
  if (args.rows >= 0) return args.rows;
  return args.rows == ROWS_TOKENS ? pass.num_tokens : pass.num_outputs;
}

// Items a thread should take at once, so that each gets about `share` spans.
static inline int64_t grain_of(int64_t total, const Work& work, int64_t share = 4) {
  const int64_t grain = total / (share * work.num_threads());
  return grain > 1 ? grain : 1;
}
