// The state shared by the threads that play together.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "operator.h"
#include "waiting.h"

constexpr int64_t LOOK_NS = 30'000;  // before a thread goes to sleep
constexpr int64_t SHORT_LOOK_NS = 1'000;

// The number of taken grains of one thread's part, with the stage in the upper half: in a later stage nothing is taken
// yet, and nobody has to reset it.
struct alignas(64) Part {
  std::atomic<uint64_t> taken{0};
};

// Memory that grows to the largest requested size. It grows in a stage of its own: all working threads are in it and
// request the same size, and nobody needs the old content any more.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  ~SharedMemory() { free(memory_); }

  void* get(size_t bytes) {
    const std::lock_guard<std::mutex> mine(mutex_);
    if (bytes_ < bytes) {
      free(memory_);
      bytes_ = (bytes + 4095) / 4096 * 4096;
      memory_ = aligned_alloc(4096, bytes_);
    }
    return memory_;
  }

 private:
  std::mutex mutex_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// The caller is thread 0, and always present. Helpers enter when they are awake, and leave when there is nothing to do.
// A helper that is delayed (the system gave its core to another thread) delays nobody, unless it has taken items.
struct Team {
  Signal stage;                                  // counts stages: what is past is done
  alignas(64) std::atomic<int64_t> num_done{0};  // grains of this stage, and 1 for the caller
  std::vector<Part> parts;                       // by thread
  SharedMemory shared;

  // The number of this play, in the upper half, and the number of helpers inside. The play number is odd while helpers
  // may enter; what they read inside does not change until the last has left.
  alignas(64) std::atomic<uint64_t> entrance{0};

  uint32_t play() const { return uint32_t(entrance.load(std::memory_order_acquire) >> 32); }

  bool enter(uint32_t play) {
    uint64_t word = entrance.load(std::memory_order_relaxed);
    while (uint32_t(word >> 32) == play)
      if (entrance.compare_exchange_weak(word, word + 1, std::memory_order_acquire)) return true;
    return false;
  }

  void leave() { entrance.fetch_sub(1, std::memory_order_release); }
  void open() { entrance.fetch_add(uint64_t(1) << 32, std::memory_order_release); }

  // Waits until all helpers have left, which they do when they have nothing to do.
  void close() {
    entrance.fetch_add(uint64_t(1) << 32, std::memory_order_relaxed);
    const auto is_empty = [&] { return uint32_t(entrance.load(std::memory_order_acquire)) == 0; };
    while (!look(LOOK_NS, is_empty)) sched_yield();
  }

  bool is_past(int32_t stage_number) const { return stage.read() - stage_number > 0; }
};
