// Attention over latents: one row is the key of all heads, and its beginning the value.
//
//   arena     [blocks][S][L + R]; see kernels/latent_attention/mla_attention.py
#pragma once

#include "attention_problem.h"

namespace {

template <typename T>
struct LatentArgs : Args {
  FIELDS(Args,
         const T* q_latent;      // [T][N][L], items of a row being neighbours
         const T* q_rope;        // [T][N][R], likewise
         const T* arena;
         T* out;                 // [T][N][L]
         int64_t num_heads;      // N
         int64_t latent_dim;     // L
         int64_t rope_dim;       // R
         int64_t latent_token;   // items from one token to the next
         int64_t latent_head;
         int64_t rope_token;
         int64_t rope_head;
         double scale;)
};

// The tokens of requests, and the blocks of their keys.
struct LatentRequests {
  const int64_t *query_starts, *context_lens, *block_tables;
  int64_t count, table_stride, block_size;
};

template <typename T>
struct LatentProblem : AttentionProblem<T> {
  using Value = T;
  static constexpr int64_t MOST_ROWS = 128;  // of a tile: with what is summed up they stay in a core's cache

  const T *q_latent, *q_rope, *arena;
  int64_t latent_token, latent_head, rope_token, rope_head;  // items from one to the next

  LatentProblem(const LatentArgs<T>& args, const LatentRequests& requests)
      : AttentionProblem<T>{.out = args.out,
                            .query_starts = requests.query_starts,
                            .context_lens = requests.context_lens,
                            .block_tables = requests.block_tables,
                            .num_requests = requests.count,
                            .table_stride = requests.table_stride,
                            .block_size = requests.block_size,
                            .num_heads = args.num_heads,
                            .num_kv_heads = 1,
                            .key_width = args.latent_dim + args.rope_dim,
                            .value_width = args.latent_dim,
                            .window = INT64_MAX / 2,
                            .scoring = Scoring(args.scale, 0)},
        q_latent(args.q_latent),
        q_rope(args.q_rope),
        arena(args.arena),
        latent_token(args.latent_token),
        latent_head(args.latent_head),
        rope_token(args.rope_token),
        rope_head(args.rope_head) {}

  bool has_sinks() const { return false; }
  float sink(int64_t) const { return 0; }

  void load_query(int64_t token, int64_t head, T* query) const {
    const int64_t latent = this->value_width, rotated = this->key_width - latent;
    memcpy(query, q_latent + token * latent_token + head * latent_head, size_t(latent) * sizeof(T));
    memcpy(query + latent, q_rope + token * rope_token + head * rope_head, size_t(rotated) * sizeof(T));
  }

  // Finds the rows of `count` keys from position `first` on; rows of odd width are copied to `copies`.
  void find_rows(const Tile& tile, int64_t first, int64_t count, T* copies, const uint8_t** keys,
                 const uint8_t** values) const {
    const int64_t width = this->key_width, padded = this->padded_key();
    for (int64_t key = 0; key < count; key++) {
      const T* found = row(tile, first + key);
      if (padded != width) {
        T* copy = copies + key * padded;
        memcpy(copy, found, size_t(width) * sizeof(T));
        std::fill(copy + width, copy + padded, T{});
        found = copy;
      }
      keys[key] = values[key] = reinterpret_cast<const uint8_t*>(found);
    }
  }

  // Prefetches the same rows.
  void prefetch_rows(const Tile& tile, int64_t first, int64_t count, Upcoming& upcoming) const {
    const int64_t end = first + count, size = this->block_size;
    for (int64_t position = first, next; position < end; position = next) {
      next = std::min(end, (position / size + 1) * size);
      upcoming.add(reinterpret_cast<const uint8_t*>(row(tile, position)),
                   (next - position) * this->key_width * int64_t(sizeof(T)));
    }
  }

 private:
  const T* row(const Tile& tile, int64_t position) const {
    const int64_t block = tile.table[position / this->block_size], slot = position % this->block_size;
    return arena + (block * this->block_size + slot) * this->key_width;
  }
};

}  // namespace
