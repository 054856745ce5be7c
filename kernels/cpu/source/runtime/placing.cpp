// Pins threads to CPUs, and places memory on their NUMA nodes.
//
// A thread begins every operator with its own part, one n-th of all items (Work::take). So a weight that is first
// touched in as many parts is local to the threads that read it.
#include "placing.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

struct Places {
  int64_t num_threads, num_words;
  std::vector<uint64_t> masks;  // [threads][words] CPUs of each thread

  const uint64_t* of(int64_t thread) const {
    return masks.data() + std::min(thread, num_threads - 1) * num_words;
  }

  // The first thread after `first` with other CPUs.
  int64_t end_of_equal(int64_t first) const {
    int64_t end = first + 1;
    while (end < num_threads && std::equal(of(first), of(first) + num_words, of(end))) end++;
    return end;
  }

  void keep(int64_t thread) const {
#if defined(__linux__)
    // For the calling thread. If the system forbids it, the thread runs anywhere.
    sched_setaffinity(0, size_t(num_words) * 8, reinterpret_cast<const cpu_set_t*>(of(thread)));
#else
    (void)thread;
#endif
  }
};

std::atomic<const Places*> places{nullptr};  // never freed, for helpers may look at it at exit
thread_local const Places* places_kept = nullptr;

constexpr int64_t PAGE = 4096;

void touch(char* memory, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; at += PAGE) const_cast<volatile char*>(memory)[at] = 0;
}

}  // namespace

void pin_thread(int thread) {
  const Places* now = places.load(std::memory_order_acquire);
  if (now == places_kept) return;
  places_kept = now;
  if (now) now->keep(thread);
}

// Pins each thread of the pool to the CPUs of its mask from its next pass on; the first is the calling thread. Without
// masks nothing changes.
extern "C" void baton_place_threads(int64_t num_threads, int64_t num_words, const uint64_t* masks) {
  places.store(num_threads ? new Places{num_threads, num_words, {masks, masks + num_threads * num_words}}
                           : nullptr,
               std::memory_order_release);
}

// Places memory that nobody has written yet on the nodes of the threads with the respective parts.
extern "C" void baton_touch(char* memory, int64_t num_bytes) {
  const Places* now = places.load(std::memory_order_acquire);
  if (!now || now->end_of_equal(0) == now->num_threads) return;
  std::vector<std::thread> threads;
  for (int64_t first = 0, end; first < now->num_threads; first = end) {
    end = now->end_of_equal(first);
    threads.emplace_back([=] {
      now->keep(first);
      touch(memory, num_bytes * first / now->num_threads, num_bytes * end / now->num_threads);
    });
  }
  for (std::thread& each : threads) each.join();
}
