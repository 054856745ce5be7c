// Memory for the segments of a table: zeroed, aligned to cache lines, and freed all at once.
//
// The first few are allocated one by one, as most tables are small. After that many are allocated at a time, on huge
// pages: names are looked up at random, and with small pages most of the time would be spent on TLB misses.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

class SegmentMemory {
 public:
  static constexpr size_t BYTES = 64 << 10;

  SegmentMemory() = default;
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;
  ~SegmentMemory() {
    for (void* segment : alone_) free(segment);
    for (void* page : pages_) munmap(page, PAGE_BYTES);
  }

  void* take() {
    if (alone_.size() < MAX_ALONE) {
      alone_.reserve(MAX_ALONE);
      void* segment = aligned_alloc(64, BYTES);
      if (!segment) throw std::bad_alloc();
      memset(segment, 0, BYTES);
      alone_.push_back(segment);
      return segment;
    }
    if (left_ == 0) {
      pages_.push_back(new_page());
      left_ = PAGE_BYTES / BYTES;
    }
    return static_cast<uint8_t*>(pages_.back()) + --left_ * BYTES;
  }

 private:
  static constexpr size_t PAGE_BYTES = 2 << 20, MAX_ALONE = 16;

  // Aligned to its size: the rest of the mapping is unmapped.
  static void* new_page() {
    auto* mapped = static_cast<uint8_t*>(mmap(nullptr, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    const size_t before = -reinterpret_cast<uintptr_t>(mapped) % PAGE_BYTES;
    if (before) munmap(mapped, before);
    munmap(mapped + before + PAGE_BYTES, PAGE_BYTES - before);
    madvise(mapped + before, PAGE_BYTES, MADV_HUGEPAGE);
    return mapped + before;
  }

  std::vector<void*> alone_, pages_;
  size_t left_ = 0;
};
