// Divides the items of an operator among threads, and ends stages.
#include "team.h"

#include <cstdlib>

namespace {

struct Scratch {
  void* memory = nullptr;
  size_t bytes = 0;
  ~Scratch() { free(memory); }
};
thread_local Scratch scratch_of_thread;

constexpr uint64_t taken_in(int32_t stage, uint64_t count) {
  return uint64_t(uint32_t(stage)) << 32 | count;
}

}  // namespace

void* Work::scratch(size_t bytes) {
  Scratch& scratch = scratch_of_thread;
  if (scratch.bytes < bytes) {
    free(scratch.memory);
    scratch.bytes = (bytes + 4095) / 4096 * 4096;
    scratch.memory = aligned_alloc(4096, scratch.bytes);
  }
  return scratch.memory;
}

void* Work::shared(size_t bytes) { return team_.shared.get(bytes); }

bool Work::take_shared(int64_t total, int64_t grain, Span& span) {
  num_grains_ = (total + grain - 1) / grain;
  for (int i = 0; i < num_threads_; i++) {
    const int owner = (thread_ + i) % num_threads_;
    const int64_t begin = (num_grains_ * owner + num_threads_ - 1) / num_threads_;
    const int64_t end = (num_grains_ * (owner + 1) + num_threads_ - 1) / num_threads_;
    std::atomic<uint64_t>& taken = team_.parts[owner].taken;
    uint64_t word = taken.load(std::memory_order_relaxed);
    for (;;) {
      const int32_t ahead = int32_t(uint32_t(word >> 32) - uint32_t(stage_));
      if (ahead > 0) return false;  // this stage is over
      const int64_t next = begin + (ahead ? 0 : int64_t(uint32_t(word)));
      if (next >= end) break;
      // A part is behind its stage only while some of it is left to take, so a successful exchange is in time.
      if (taken.compare_exchange_weak(word, taken_in(stage_, next - begin + 1),
                                      std::memory_order_relaxed)) {
        num_done_++;
        ends_part_ = next + 1 >= end;
        span = {next * grain, next * grain + grain < total ? next * grain + grain : total};
        return true;
      }
    }
  }
  return false;
}

bool Work::report() {
  const int64_t mine = num_done_ + (thread_ == 0);
  if (mine == 0) return false;
  return team_.num_done.fetch_add(mine, std::memory_order_acq_rel) + mine == num_grains_ + 1;
}

void Work::advance() {
  team_.num_done.store(0, std::memory_order_relaxed);
  team_.stage.write(stage_ + 1);
}

void Work::begin_stage() {
  stage_++;
  num_done_ = num_grains_ = 0;
  has_taken_ = false;
}

void Work::barrier() {
  if (num_threads_ > 1) {
    if (report()) advance();
    const auto is_past = [&] { return team_.is_past(stage_); };
    while (!look(LOOK_NS, is_past)) team_.stage.sleep_while(stage_);
  }
  begin_stage();
}
