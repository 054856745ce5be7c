// Attention over separate keys and values, unquantized or of 8 bits; see kernels/attention/paged_attention.py.
//
//   arena     [blocks][K][2][S][H]; see arena.h
#pragma once

#include "arena.h"
#include "attention_problem.h"

namespace {

template <typename T>
struct KvArgs : Args {
  FIELDS(Args,
         const T* q;                   // [T][N][H]
         uint8_t* arena;
         const int64_t* query_starts;  // [R + 1]
         const int64_t* context_lens;  // [R]
         const int64_t* block_tables;  // [R][table_stride]
         const void* sinks;            // [N] of T or float, or null
         T* out;                       // as q
         int64_t num_heads;            // N
         int64_t num_kv_heads;         // K
         int64_t width;                // H
         int64_t block_size;           // S
         int64_t table_stride;
         int64_t window;               // as attention_problem.h says, or 0: all
         int64_t num_first;            // keys at the beginning that all see
         int64_t items;                // Items of arena.h
         int64_t unit_bytes;
         int64_t has_float_sinks;
         double scale;
         double softcap;)              // or 0
};

template <typename T>
struct KvProblem : AttentionProblem<T> {
  using Value = T;
  static constexpr int64_t MOST_ROWS = 256;  // of a tile: with what is summed up they stay in a core's cache

  const T* q;  // [T][N][H]
  Arena arena;
  const void* sinks;
  bool sinks_are_float;

  KvProblem(const KvArgs<T>& args, const Pass& pass)
      : AttentionProblem<T>{.out = args.out,
                            .query_starts = args.query_starts,
                            .context_lens = args.context_lens,
                            .block_tables = args.block_tables,
                            .num_requests = pass.num_requests,
                            .table_stride = args.table_stride,
                            .block_size = args.block_size,
                            .num_heads = args.num_heads,
                            .num_kv_heads = args.num_kv_heads,
                            .key_width = args.width,
                            .value_width = args.width,
                            .window = args.window ? args.window : INT64_MAX / 2,
                            .scoring = Scoring(args.scale, args.softcap),
                            .num_first = args.num_first,
                            .items = Items(args.items)},
        q(args.q),
        arena(arena_of<T>(args)),
        sinks(args.sinks),
        sinks_are_float(args.has_float_sinks) {}

  bool has_sinks() const { return sinks; }
  float sink(int64_t head) const {
    const float logit = sinks_are_float ? static_cast<const float*>(sinks)[head]
                                        : to_float(static_cast<const T*>(sinks)[head]);
    return logit * float(M_LOG2E);
  }

  const T* find_query(int64_t token, int64_t head) const {
    const bool is_as_it_is = this->padded_key() == arena.width && !this->has_shuffled_keys();
    return is_as_it_is ? query_of(token, head) : nullptr;
  }
  void load_query(int64_t token, int64_t head, T* query) const {
    memcpy(query, query_of(token, head), size_t(arena.width) * sizeof(T));
  }

  // Whether rows are read in the cache itself; those of the next KV head are one unit later.
  bool is_read_in_place() const {
    return (!this->has_scales() || this->is_bytes()) && this->padded_key() == arena.width;
  }
  void find_rows_of_next_head(int64_t count, const uint8_t** keys, const uint8_t** values) const {
    for (int64_t key = 0; key < count; key++) keys[key] += arena.unit_bytes;
    for (int64_t key = 0; key < count; key++) values[key] += arena.unit_bytes;
  }

  // Finds the rows of `count` keys from position `first` on; rows that must be converted are copied to `copies`.
  void find_rows(const Tile& tile, int64_t first, int64_t count, T* copies, const uint8_t** keys,
                 const uint8_t** values) const {
    const int64_t width = this->padded_key(), row_bytes = arena.width * arena.item_bytes;
    const bool as_they_are = is_read_in_place();
    int64_t slot = first % arena.block_size, block = first / arena.block_size;
    for (int64_t key = 0; key < count; slot = 0, block++) {
      uint8_t* unit = arena.unit(tile.table[block], tile.kv_head);
      const int64_t end = std::min(count, key + arena.block_size - slot);
      const uint8_t *k = arena.row(unit, 0, slot), *v = arena.row(unit, 1, slot);
      for (int64_t i = key; i < end; i++) {
        keys[i] = k + (i - key) * row_bytes;
        values[i] = v + (i - key) * row_bytes;
      }
      for (; key < end && !as_they_are; key++) {
        keys[key] = copy_row(keys[key], this->has_shuffled_keys(), copies + 2 * key * width);
        values[key] = copy_row(values[key], false, copies + (2 * key + 1) * width);
      }
      key = end;
    }
  }

  void find_scales(const Tile& tile, int64_t first, int64_t count, RowScales& scales) const {
    int64_t slot = first % arena.block_size, block = first / arena.block_size;
    for (int64_t key = 0, rows; key < count; key += rows, slot = 0, block++) {
      uint8_t* unit = arena.unit(tile.table[block], tile.kv_head);
      rows = std::min(count - key, arena.block_size - slot);
      const float *of_keys = arena.scale(unit, 0, slot), *of_values = arena.scale(unit, 1, slot);
      if (rows == 16) {  // blocks are of 16, nearly always
        store(scales.keys + key, load(of_keys));
        store(scales.values + key, load(of_values));
        continue;
      }
      memcpy(scales.keys + key, of_keys, size_t(rows) * sizeof(float));
      memcpy(scales.values + key, of_values, size_t(rows) * sizeof(float));
    }
    std::fill(scales.keys + count, scales.keys + CHUNK, 0.0f);
    std::fill(scales.values + count, scales.values + CHUNK, 0.0f);
    for (float& scale : scales.keys) scale *= this->scoring.factor;
  }

  // Prefetches the same rows.
  void prefetch_rows(const Tile& tile, int64_t first, int64_t count, Upcoming& upcoming) const {
    const int64_t row_bytes = arena.width * arena.item_bytes, end = first + count;
    for (int64_t position = first, slot = first % arena.block_size; position < end; slot = 0) {
      const int64_t rows = std::min(arena.block_size - slot, end - position);
      uint8_t* unit = arena.unit(tile.table[position / arena.block_size], tile.kv_head);
      position += rows;
      if (rows == arena.block_size) {
        upcoming.add(unit, arena.unit_bytes);
        continue;
      }
      for (int64_t is_value = 0; is_value < 2; is_value++) {
        upcoming.add(arena.row(unit, is_value, slot), rows * row_bytes);
        if (arena.items != Items::WIDE)
          upcoming.add(reinterpret_cast<uint8_t*>(arena.scale(unit, is_value, slot)), 4 * rows);
      }
    }
  }

 private:
  const T* query_of(int64_t token, int64_t head) const { return q + (token * this->num_heads + head) * arena.width; }

  // A row, converted to T unless bytes are multiplied, and padded with zeros.
  const uint8_t* copy_row(const uint8_t* row, bool is_shuffled, T* copy) const {
    const int64_t padded = this->padded_key();
    uint8_t* const bytes = reinterpret_cast<uint8_t*>(copy);
    if (this->has_scales() && !this->is_bytes()) {
      convert(row, arena.items, arena.width, padded, is_shuffled, copy);
    } else {
      memcpy(bytes, row, size_t(arena.width * arena.item_bytes));
      std::fill(bytes + arena.width * arena.item_bytes, bytes + padded * arena.item_bytes, uint8_t(0));
    }
    return bytes;
  }
};

}  // namespace
