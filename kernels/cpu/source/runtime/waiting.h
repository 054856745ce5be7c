// How threads wait for each other: they spin for some microseconds, and then sleep.
//
// A spinning thread answers within a tenth of a microsecond, and takes a core from everybody else. A sleeping one takes
// nothing, and needs a system call, and some microseconds, to wake up.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Whether `is_over` became true while spinning for some nanoseconds.
template <typename Condition>
static inline bool look(int64_t ns, Condition is_over) {
  int64_t deadline = 0;
  for (int looks = 1;; looks++) {
    if (is_over()) return true;
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
    if (looks % 16) continue;
    const int64_t now = now_ns();
    if (!deadline) deadline = now + ns;
    if (now >= deadline) return false;
  }
}

// A number that threads can sleep on, alone on its cache line.
class alignas(64) Signal {
 public:
  int32_t read() const { return value_.load(std::memory_order_acquire); }

  // Releases earlier writes to threads that read the value.
  void write(int32_t value) {
    value_.store(value);  // in one order with what sleepers do: they see it, or are seen
    if (num_sleeping_.load()) wake();
  }

  // May return spuriously.
  void sleep_while(int32_t value) {
    num_sleeping_.fetch_add(1);
    if (value_.load() == value) wait(value);
    num_sleeping_.fetch_sub(1);
  }

 private:
#if defined(__linux__)
  void wait(int32_t value) {
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
  void wake() { syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }
#else
  void wait(int32_t value) { value_.wait(value); }
  void wake() { value_.notify_all(); }
#endif

  std::atomic<int32_t> value_{0};
  std::atomic<int32_t> num_sleeping_{0};
};
