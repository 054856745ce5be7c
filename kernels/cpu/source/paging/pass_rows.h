// The unquantized K and V of the blocks that a pass writes into; see kernels/paging/int4_arena.py.
//
//   pass rows   [T + R (S - 1)][2][K][H]   of request r from query_starts[r] + r (S - 1) on: first what its
//                                          open block held before the pass, then its new tokens
//   open rows   [slots][O][K][2][S][H]     the last blocks of each running request, kept between passes
#pragma once

#include <cstdint>

namespace {

template <typename T>
struct PassRows {
  T* rows;
  int64_t num_heads, block_size, width;

  int64_t first(int64_t request, int64_t query_start) const {
    return query_start + request * (block_size - 1);
  }
  int64_t stride() const { return 2 * num_heads * width; }
  T* row(int64_t number, int64_t head, int64_t is_value) const {
    return rows + ((number * 2 + is_value) * num_heads + head) * width;
  }
};

}  // namespace
