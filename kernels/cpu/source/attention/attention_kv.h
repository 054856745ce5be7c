// Attention over keys and values of their own, as they are or in 8 bits; see kernels/attention/paged_attention.py.
//
//   arena     [blocks][K][2][S][H]; see arena.h
#pragma once

#include "arena.h"
#include "attention_problem.h"

namespace {

// in: q, arena, query starts, context lengths, block tables, sinks [N] or null; out: as q
// i: N, K, H, S, items from one table to the next, window (attention_problem.h) or 0, Items, unit bytes,
// sinks are float, keys at the beginning that all see
// f: scale, soft cap or 0
template <typename T>
struct KvProblem : AttentionProblem<T> {
  using Value = T;
  static constexpr int64_t MOST_ROWS = 256;  // of a tile: with what is summed up they stay in a core's cache

  const T* q;  // [T][N][H]
  Arena arena;
  const void* sinks;
  bool sinks_are_float;

  KvProblem(const Args& args, const Pass& pass)
      : AttentionProblem<T>{static_cast<T*>(args.out[0]),
                            static_cast<const int64_t*>(args.in[2]),
                            static_cast<const int64_t*>(args.in[3]),
                            static_cast<const int64_t*>(args.in[4]),
                            pass.num_requests,
                            args.i[4],
                            args.i[3],
                            args.i[0],
                            args.i[1],
                            args.i[2],
                            args.i[2],
                            args.i[5] ? args.i[5] : INT64_MAX / 2,
                            Scoring(args.f[0], args.f[1])},
        q(static_cast<const T*>(args.in[0])),
        sinks(args.in[5]),
        sinks_are_float(args.i[8]) {
    this->num_first = args.i[9];
    const Items items = Items(args.i[6]);
    arena = {static_cast<uint8_t*>(const_cast<void*>(args.in[1])), args.i[1], args.i[3], args.i[2],
             items, args.i[7], items == Items::WIDE ? int64_t(sizeof(T)) : 1};
  }

  bool has_sinks() const { return sinks; }
  float sink(int64_t head) const {
    const float logit = sinks_are_float ? static_cast<const float*>(sinks)[head]
                                        : to_float(static_cast<const T*>(sinks)[head]);
    return logit * float(M_LOG2E);
  }

  void load_query(int64_t token, int64_t head, T* query) const {
    memcpy(query, q + (token * this->num_heads + head) * arena.width, size_t(arena.width) * sizeof(T));
  }

  // Where the rows of `count` keys from position `first` on lie; those that had to be copied are in `copies`.
  void find_rows(const Tile& tile, int64_t first, int64_t count, T* copies, const uint8_t** keys,
                 const uint8_t** values) const {
    const int64_t width = this->padded_key(), row_bytes = arena.width * arena.item_bytes;
    const bool as_they_are = arena.items == Items::WIDE && width == arena.width;
    int64_t slot = first % arena.block_size, block = first / arena.block_size;
    for (int64_t key = 0; key < count; slot = 0, block++) {
      uint8_t* unit = arena.unit(tile.table[block], tile.kv_head);
      const int64_t end = std::min(count, key + arena.block_size - slot);
      const uint8_t *k = arena.row(unit, 0, slot), *v = arena.row(unit, 1, slot);
      for (int64_t i = key; i < end; i++) {
        keys[i] = k + (i - key) * row_bytes;
        values[i] = v + (i - key) * row_bytes;
      }
      for (; key < end && !as_they_are; key++, slot++) {
        keys[key] = copy_row(keys[key], arena.scale(unit, 0, slot), copies + 2 * key * width);
        values[key] = copy_row(values[key], arena.scale(unit, 1, slot), copies + (2 * key + 1) * width);
      }
      key = end;
    }
  }

  // The same rows, which will be read soon.
  void expect_rows(const Tile& tile, int64_t first, int64_t count, Upcoming& upcoming) const {
    const int64_t row_bytes = arena.width * arena.item_bytes, end = first + count;
    for (int64_t position = first, slot = first % arena.block_size; position < end; slot = 0) {
      const int64_t rows = std::min(arena.block_size - slot, end - position);
      uint8_t* unit = arena.unit(tile.table[position / arena.block_size], tile.kv_head);
      for (int64_t is_value = 0; is_value < 2; is_value++) {
        upcoming.add(arena.row(unit, is_value, slot), rows * row_bytes);
        if (arena.items != Items::WIDE)
          upcoming.add(reinterpret_cast<uint8_t*>(arena.scale(unit, is_value, slot)), 4 * rows);
      }
      position += rows;
    }
  }

 private:
  // A row as T, followed by zeros up to the padded width.
  const uint8_t* copy_row(const uint8_t* row, const float* scale, T* copy) const {
    const int64_t padded = this->padded_key();
    if (arena.items != Items::WIDE) {
      dequantize(row, *scale, arena.items, arena.width, padded, copy);
    } else {
      memcpy(copy, row, size_t(arena.width) * sizeof(T));
      std::fill(copy + arena.width, copy + padded, T{});
    }
    return reinterpret_cast<const uint8_t*>(copy);
  }
};

}  // namespace
