// What every operator sees: its arguments, the pass it is part of, and its share of the work.
//
//   template <typename T>
//   struct NormArgs : Args {
//     FIELDS(Args,
//            const T* x;  // [rows][width]
//            T* y;
//            int64_t width;
//            double eps;)
//   };
//
//   OPERATOR(rms_norm_f32, NormArgs<float>) {
//     Span rows;
//     while (work.take(row_count(args, pass), 4, rows))
//       for (int64_t row = rows.begin; row < rows.end; row++) ... args.x ...
//   }
//
// Python reads the declaration of the fields, as it is written, and gives each by its name; see
// kernels/cpu/operators.py.
//
// Several threads call an operator, and take spans of its items as they come free. All that is written
// must belong to a span that was taken: an operator is done when all its items are, and is not waited
// for by a thread that has none. A thread that the system put aside, or that has yet to wake up, may
// come when all is over; it finds nothing to take. Who computes an item has no influence on what
// comes out. Operators in turn need no barrier of their own: the tape has one between any two.
//
// The C ABI is all there is, so that the library needs no headers of torch.
#pragma once

#include <algorithm>
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

// Text that the compiler has put together.
template <size_t SIZE>
struct Text {
  char chars[SIZE];

  constexpr size_t count(char wanted) const {
    size_t found = 0;
    for (char each : chars) found += each == wanted;
    return found;
  }
};

template <size_t SIZE, size_t MORE>
constexpr Text<SIZE + MORE - 1> operator+(const Text<SIZE>& text, const char (&more)[MORE]) {
  Text<SIZE + MORE - 1> both{};
  for (size_t i = 0; i + 1 < SIZE; i++) both.chars[i] = text.chars[i];
  for (size_t i = 0; i < MORE; i++) both.chars[SIZE - 1 + i] = more[i];
  return both;
}

// What all operators are given, before fields of their own.
struct Args {
  static constexpr Text<14> declared{"int64_t rows;"};
  int64_t rows;  // a number, or one of the above
};

// The fields that a struct adds to those of its base, each a pointer, int64_t or double, and their text.
#define FIELDS(base, ...) \
  __VA_ARGS__             \
  static constexpr auto declared = base::declared + #__VA_ARGS__;

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

  // Whether what lies behind the span that was taken last is not this thread's to begin with.
  bool ends_part() const { return ends_part_; }

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
  bool ends_part_ = true;
};

using Operator = void (*)(const Args&, const Pass&, Work&);

// An operator, and `name_fields()`, by which Python asks for the fields of its arguments.
#define OPERATOR(name, ...)                                                                    \
  static_assert(sizeof(__VA_ARGS__) == 8 * (__VA_ARGS__::declared.count(';')));                \
  static void run_##name(const __VA_ARGS__& args, const Pass& pass, Work& work);               \
  extern "C" const char* name##_fields() { return __VA_ARGS__::declared.chars; }               \
  extern "C" void name(const Args& args, const Pass& pass, Work& work) {                       \
    run_##name(static_cast<const __VA_ARGS__&>(args), pass, work);                             \
  }                                                                                            \
  static void run_##name(const __VA_ARGS__& args, const Pass& pass, Work& work)

static inline int64_t row_count(const Args& args, const Pass& pass) {
  if (args.rows >= 0) return args.rows;
  return args.rows == ROWS_TOKENS ? pass.num_tokens : pass.num_outputs;
}

// Items a thread should take at once, so that each gets about `share` spans.
static inline int64_t grain_of(int64_t total, const Work& work, int64_t share = 4) {
  const int64_t grain = total / (share * work.num_threads());
  return grain > 1 ? grain : 1;
}

// Fewer, for products: whom the system puts aside with some is waited for at the end. But at least as many as take some
// microseconds, each of them about `item_ns`, for taking takes time, too.
constexpr int64_t SHORT_SHARE = 16, SHORT_GRAIN_NS = 4'000;

static inline int64_t short_grain_of(int64_t total, const Work& work, int64_t item_ns) {
  const int64_t least = SHORT_GRAIN_NS / (item_ns + 1) + 1;
  return std::min(std::max(grain_of(total, work, SHORT_SHARE), least), grain_of(total, work));
}
