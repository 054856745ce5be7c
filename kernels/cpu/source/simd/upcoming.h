// Prefetches memory that will be read soon, a line at a time while something else is computed.
//
// Decoding is bound by memory, and the blocks of a cache are scattered, so no hardware prefetcher finds them. A burst
// of prefetches would wait for memory itself, so they are spread evenly over the work at hand.
#pragma once

#include <cstdint>

class Upcoming {
 public:
  void clear() {
    count_ = next_ = 0;
    at_ = end_ = nullptr;
  }

  void add(const uint8_t* begin, int64_t bytes) {
    if (count_ < MAX_RANGES) ranges_[count_++] = {begin, begin + bytes};
  }

  // Lines of all ranges; a line shared by two ranges counts twice.
  int64_t num_lines() const {
    int64_t lines = 0;
    for (int i = 0; i < count_; i++) lines += (ranges_[i].end - ranges_[i].begin + LINE - 1) / LINE;
    return lines;
  }

  __attribute__((always_inline)) void fetch(int lines) {
    for (int i = 0; i < lines; i++) {
      if (at_ >= end_) {
        if (next_ == count_) return;
        at_ = ranges_[next_].begin;
        end_ = ranges_[next_++].end;
      }
      __builtin_prefetch(at_, 0, 2);
      at_ += LINE;
    }
  }

  void fetch_all() {
    while (at_ < end_ || next_ < count_) fetch(1);
  }

 private:
  static constexpr int MAX_RANGES = 256;
  static constexpr int64_t LINE = 64;

  struct Range {
    const uint8_t *begin, *end;
  };

  Range ranges_[MAX_RANGES];
  int count_ = 0, next_ = 0;
  const uint8_t *at_ = nullptr, *end_ = nullptr;
};
