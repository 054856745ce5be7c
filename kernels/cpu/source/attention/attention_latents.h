// Attention over latents, of which one row is the key of all heads, and its beginning the value.
//
//   arena     [blocks][S][L + R]; see kernels/attention/mla_attention.py
#pragma once

#include "attention_problem.h"

namespace {

// in: q_latent, q_rope, arena, query starts, context lengths, block tables; out: [T][N][L]
// i: N, L, R, S, items from one table to the next, from a token of q_latent to the next, from a head to the
//    next, the same of q_rope
// f: scale
template <typename T>
struct LatentProblem : AttentionProblem<T> {
  using Value = T;
  static constexpr int64_t MOST_ROWS = 128;  // of a tile: with what is summed up they stay in a core's cache

  const T *q_latent, *q_rope, *arena;
  int64_t latent_token, latent_head, rope_token, rope_head;  // items from one to the next

  LatentProblem(const Args& args, const Pass& pass)
      : AttentionProblem<T>{static_cast<T*>(args.out[0]),
                            static_cast<const int64_t*>(args.in[3]),
                            static_cast<const int64_t*>(args.in[4]),
                            static_cast<const int64_t*>(args.in[5]),
                            pass.num_requests,
                            args.i[4],
                            args.i[3],
                            args.i[0],
                            1,
                            args.i[1] + args.i[2],
                            args.i[1],
                            INT64_MAX / 2,
                            Scoring(args.f[0], 0)},
        q_latent(static_cast<const T*>(args.in[0])),
        q_rope(static_cast<const T*>(args.in[1])),
        arena(static_cast<const T*>(args.in[2])),
        latent_token(args.i[5]),
        latent_head(args.i[6]),
        rope_token(args.i[7]),
        rope_head(args.i[8]) {}

  bool has_sinks() const { return false; }
  float sink(int64_t) const { return 0; }

  void load_query(int64_t token, int64_t head, T* query) const {
    const int64_t latent = this->value_width, turned = this->key_width - latent;
    memcpy(query, q_latent + token * latent_token + head * latent_head, size_t(latent) * sizeof(T));
    memcpy(query + latent, q_rope + token * rope_token + head * rope_head, size_t(turned) * sizeof(T));
  }

  // Where the rows of `count` keys from position `first` on lie; if they are of an odd width, in `copies`.
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

  // The same rows, which will be read soon.
  void expect_rows(const Tile& tile, int64_t first, int64_t count, Upcoming& upcoming) const {
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
