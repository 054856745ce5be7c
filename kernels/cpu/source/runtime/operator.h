// The interface of operators: arguments, the pass, and the division of work.
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
// Python reads the text of the field declarations, and passes fields by name; see kernels/cpu/operators.py.
//
// Several threads call an operator, and take spans of its items dynamically. A thread may write only to items of spans
// that it has taken: an operator is done when all items are, without waiting for threads that have none. A thread that
// was preempted, or has yet to wake up, may come when everything is done; it then finds nothing to take. Results do not
// depend on which thread computes an item. The tape has a barrier between any two operators, so an operator needs none
// at its end.
//
// The interface is a C ABI, so that the library needs no headers of torch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

// The size of a forward pass, which is all that changes from pass to pass of a tape. The tensors that describe the pass
// (tokens, positions, block tables ...) stay in place and are written anew.
struct Pass {
  int64_t num_tokens;
  int64_t num_outputs;   // tokens whose outputs are wanted
  int64_t num_requests;
};

// Stands for the number of rows of the pass, so that a tape runs passes of any size.
constexpr int64_t ROWS_TOKENS = -1;
constexpr int64_t ROWS_OUTPUTS = -2;

// Text that is concatenated at compile time.
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

// The arguments of all operators, before fields of their own.
struct Args {
  static constexpr Text<14> declared{"int64_t rows;"};
  int64_t rows;  // a number, or one of the above
};

// Declares the fields that a struct adds to those of its base, each a pointer, int64_t or double, and records their
// text.
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

  // Takes the next `grain` of `total` items, fewer at the end; false when all are taken. Each thread begins in a part
  // of its own, so that it reads memory in order, and then helps the others.
  //
  // All threads must pass the same numbers, in at most one loop between two barriers.
  bool take(int64_t total, int64_t grain, Span& span) {
    if (num_threads_ > 1) return take_shared(total, grain, span);
    if (has_taken_) return false;
    has_taken_ = true;
    span = {0, total};
    return total > 0;
  }

  // Whether the items after the last taken span belong to another thread's part.
  bool ends_part() const { return ends_part_; }

  // Waits until all items are done: their results can be read, and further items can be taken. A thread must not keep
  // state across a barrier, because the assignment of items changes.
  void barrier();

  int thread() const { return thread_; }
  int num_threads() const { return num_threads_; }

  // Uninitialized memory of this thread, 64-byte aligned, kept from call to call.
  void* scratch(size_t bytes);

  // Memory shared by all threads, 64-byte aligned, for data that passes from one stage of an operator to the next. All
  // must request the same size; it is uninitialized at first.
  void* shared(size_t bytes);

  // The rest is for the runtime. Between barriers there is a stage; `report` reports this thread's share of it, and
  // returns true to the thread that completes it, which must then call `advance`.
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

// Defines an operator, and `name_fields()`, which gives Python the text of its fields.
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

// Items that a thread should take at a time, so that each gets about `share` spans.
static inline int64_t grain_of(int64_t total, const Work& work, int64_t share = 4) {
  const int64_t grain = total / (share * work.num_threads());
  return grain > 1 ? grain : 1;
}

// Smaller spans for products, because a thread that is preempted within its span delays the end. But at least so many
// items, each taking about `item_ns`, that a span takes some microseconds, as taking costs time, too.
constexpr int64_t SHORT_SHARE = 16, SHORT_GRAIN_NS = 4'000;

static inline int64_t short_grain_of(int64_t total, const Work& work, int64_t item_ns) {
  const int64_t least = SHORT_GRAIN_NS / (item_ns + 1) + 1;
  return std::min(std::max(grain_of(total, work, SHORT_SHARE), least), grain_of(total, work));
}
