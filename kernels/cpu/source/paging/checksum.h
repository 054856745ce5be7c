// Checksums of units of memory, and the blocks in which units lie (checksum.cpp).
#pragma once

#include <cstdint>

// Ranges of the same number of units: one at each of `starts` relative to each of `rows`.
struct Blocks {
  uint8_t* memory;
  const int64_t* rows;
  const int64_t* starts;
  int64_t num_rows, num_starts;
};

// Iterates over the addresses of blocks.
struct Cursor {
  const Blocks* blocks;
  int64_t row = 0, at = 0;

  bool is_over() const { return row == blocks->num_rows || !blocks->num_starts; }
  uint8_t* where() const { return blocks->memory + blocks->rows[row] + blocks->starts[at]; }

  void next() {
    if (++at < blocks->num_starts) return;
    at = 0;
    row++;
  }
};

// The checksum of `length` bytes of `p`, which are copied there from `source` first, unless it is null. `next` is read
// afterwards, and prefetched.
uint64_t checksum(uint8_t* p, const uint8_t* source, int64_t length, const uint8_t* next);

// A fence after streaming stores: threads that are notified afterwards see the copies.
void copies_end();
