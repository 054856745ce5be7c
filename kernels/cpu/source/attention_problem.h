// What attention is given, and how it is cut: into tiles of rows, numbered for the threads to take.
//
// Chunks and segments of keys lie at multiples of their lengths, whatever the tile: see attention.cpp.
#pragma once

#include <algorithm>
#include <bit>

#include "arena.h"
#include "attention_products.h"
#include "attention_softmax.h"

namespace {

constexpr int64_t CHUNK = 64;
constexpr int64_t SEGMENT = 512;
constexpr int64_t TILE_ROWS = 64;
constexpr int64_t MANY_ROWS = 16;  // from here on arithmetic takes longer than memory

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <typename T>
struct AttentionProblem {
  const T* q;  // [T][N][H]
  T* out;
  Arena arena;
  const int64_t *query_starts, *context_lens, *block_tables;
  const void* sinks;
  bool sinks_are_float;
  int64_t num_heads, group, table_stride, window;
  Scoring scoring;

  explicit AttentionProblem(const Args& args)
      : q(static_cast<const T*>(args.in[0])),
        out(static_cast<T*>(args.out[0])),
        query_starts(static_cast<const int64_t*>(args.in[2])),
        context_lens(static_cast<const int64_t*>(args.in[3])),
        block_tables(static_cast<const int64_t*>(args.in[4])),
        sinks(args.in[5]),
        sinks_are_float(args.i[8]),
        num_heads(args.i[0]),
        group(args.i[0] / args.i[1]),
        table_stride(args.i[4]),
        window(args.i[5] ? args.i[5] : INT64_MAX / 2),
        scoring(args.f[0], args.f[1]) {
    const Items items = Items(args.i[6]);
    arena = {static_cast<uint8_t*>(const_cast<void*>(args.in[1])), args.i[1], args.i[3], args.i[2],
             items, args.i[7], items == Items::WIDE ? int64_t(sizeof(T)) : 1};
  }

  int64_t width() const { return arena.width; }
  int64_t padded_width() const { return round_up(width(), 16 * PER_CELL<T>); }
  int64_t depth() const { return (width() + PER_CELL<T> - 1) / PER_CELL<T>; }  // cells of a head
  int64_t padded_depth() const { return padded_width() / PER_CELL<T>; }
  int64_t query_stride() const { return int64_t(std::bit_ceil(uint64_t(padded_depth()))); }
  float sink(int64_t head) const {
    const float logit = sinks_are_float ? static_cast<const float*>(sinks)[head]
                                        : to_float(static_cast<const T*>(sinks)[head]);
    return logit * float(M_LOG2E);
  }
};

// Some rows of one request on one KV head.
struct Tile {
  const int64_t* table;
  int64_t kv_head, group;
  int64_t first_token;  // of the request, among those of the pass
  int64_t past;         // tokens of the request before that
  int64_t begin, end;   // rows: token * group + head

  int64_t rows() const { return end - begin; }
  int64_t token(int64_t row) const { return (begin + row) / group; }
  int64_t position(int64_t row) const { return past + token(row); }
  int64_t head(int64_t row) const { return kv_head * group + (begin + row) % group; }
  int64_t last_position() const { return position(rows() - 1); }
};

// Tiles of all requests, the last tile of each first, for it sees most; numbered heads innermost.
template <typename T>
class Tiles {
 public:
  Tiles(const AttentionProblem<T>& problem, int64_t num_requests)
      : problem_(problem), num_requests_(num_requests) {}

  int64_t count() const {
    int64_t total = 0;
    for (int64_t request = 0; request < num_requests_; request++) total += count_of(request);
    return total;
  }

  // Cheap where numbers rise from call to call.
  Tile operator[](int64_t number) {
    if (number < first_) request_ = first_ = 0;
    while (number >= first_ + count_of(request_)) first_ += count_of(request_++);
    const int64_t kv_heads = problem_.arena.num_heads, rows = rows_of(request_);
    const int64_t tile = (number - first_) / kv_heads;
    const int64_t begin = (count_of(request_) / kv_heads - 1 - tile) * TILE_ROWS;
    const int64_t start = problem_.query_starts[request_];
    return {problem_.block_tables + request_ * problem_.table_stride,
            (number - first_) % kv_heads,
            problem_.group,
            start,
            problem_.context_lens[request_] - (problem_.query_starts[request_ + 1] - start),
            begin,
            std::min(begin + TILE_ROWS, rows)};
  }

 private:
  int64_t rows_of(int64_t request) const {
    return (problem_.query_starts[request + 1] - problem_.query_starts[request]) * problem_.group;
  }
  int64_t count_of(int64_t request) const {
    return (rows_of(request) + TILE_ROWS - 1) / TILE_ROWS * problem_.arena.num_heads;
  }

  const AttentionProblem<T>& problem_;
  int64_t num_requests_;
  int64_t request_ = 0, first_ = 0;  // the request last asked for, and the number of its first tile
};

}  // namespace
