// Addresses of tokens in a paged arena with one vector per token: arena [blocks][S][width].
#pragma once

#include <cstdint>

namespace {

struct TokenSlots {
  const int64_t *positions, *query_starts, *tables;
  int64_t block_size, table_stride;

  // The request of a token. `request`: that of an earlier token, where the search begins.
  int64_t request_of(int64_t token, int64_t request) const {
    if (token < query_starts[request]) request = 0;
    while (token >= query_starts[request + 1]) request++;
    return request;
  }

  int64_t slot(int64_t request, int64_t position) const {
    const int64_t block = tables[request * table_stride + position / block_size];
    return block * block_size + position % block_size;
  }
};

template <typename Given>
TokenSlots slots_of(const Given& args) {
  return {args.positions, args.query_starts, args.block_tables, args.block_size, args.table_stride};
}

}  // namespace
