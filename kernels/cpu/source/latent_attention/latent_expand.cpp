// Expands the latents of one request to keys and values of heads; see kernels/latent_attention/latent_expand.py.
//
// An item is a block of the cache and a head; a thread stays with a head, whose matrices stay in its cache.
#include <algorithm>

#include "linear_finish.h"

namespace {

template <typename T>
struct LatentExpandArgs : Args {
  FIELDS(Args,
         const T* arena;         // [blocks][S][L + R]
         const int64_t* table;   // [rows] of blocks
         const T* keys;          // panels of U_k, head by head
         const T* values;        // panels of U_v
         T* kv;                  // [rows][N][2][S][H]
         int64_t num_heads;      // N
         int64_t nope_dim;       // P
         int64_t rope_dim;       // R
         int64_t value_dim;      // V
         int64_t latent_dim;     // L
         int64_t block_size;     // S
         int64_t width;)         // H
};

template <typename T>
struct Expansion {
  const T* arena;
  const int64_t* table;
  const T *keys, *values;  // panels
  T* kv;
  int64_t num_heads, nope, rotated, value, latent, block_size, width;

  explicit Expansion(const LatentExpandArgs<T>& args)
      : arena(args.arena),
        table(args.table),
        keys(args.keys),
        values(args.values),
        kv(args.kv),
        num_heads(args.num_heads),
        nope(args.nope_dim),
        rotated(args.rope_dim),
        value(args.value_dim),
        latent(args.latent_dim),
        block_size(args.block_size),
        width(args.width) {}

  void make(int64_t block, int64_t head) const {
    const int64_t cached = latent + rotated;
    const T* rows = arena + table[block] * block_size * cached;
    T* key = kv + (block * num_heads + head) * 2 * block_size * width;
    T* of_value = key + block_size * width;
    multiply(rows, keys, head, nope, key);
    multiply(rows, values, head, value, of_value);
    for (int64_t slot = 0; slot < block_size; slot++, key += width, of_value += width) {
      std::copy_n(rows + slot * cached + latent, rotated, key + nope);
      std::fill(key + nope + rotated, key + width, T{});
      std::fill(of_value + value, of_value + width, T{});
    }
  }

  // Multiplies all tokens of a block by `count` rows of a head's matrix.
  void multiply(const T* x, const T* panels, int64_t head, int64_t count, T* out) const {
    alignas(64) float sums[MOST_TILE_ROWS * PANEL];
    const int64_t at_once = tile_rows<T>();
    const int64_t cached = latent + rotated, num_panels = (count + PANEL - 1) / PANEL;
    const T* panel = panels + head * num_panels * latent * PANEL;
    for (int64_t column = 0; column < count; column += PANEL, panel += latent * PANEL) {
      for (int64_t slot = 0; slot < block_size; slot += at_once) {
        const int64_t tile = std::min(block_size - slot, at_once);
        const Prefetch<1> ahead{reinterpret_cast<const char*>(panel), 0};
        multiply_rows(tile, x + slot * cached, cached, panel, latent / Step<T>::DEPTH, ahead, sums);
        for (int64_t i = 0; i < tile; i++) {
          T* row = out + (slot + i) * width + column;
          store_up_to(row, load(sums + i * PANEL), count - column);
          store_up_to(row + 16, load(sums + i * PANEL + 16), count - column - 16);
        }
      }
    }
  }
};

template <typename T>
void run(const LatentExpandArgs<T>& args, const Pass& pass, Work& work) {
  const Expansion<T> expansion(args);
  const int64_t num_blocks = row_count(args, pass), total = num_blocks * expansion.num_heads;
  Span items;
  while (work.take(total, grain_of(total, work), items))
    for (int64_t item = items.begin; item < items.end; item++)
      expansion.make(item % num_blocks, item / num_blocks);
}

}  // namespace

OPERATOR(latent_expand_f32, LatentExpandArgs<float>) { run<float>(args, pass, work); }
OPERATOR(latent_expand_bf16, LatentExpandArgs<bf16>) { run<bf16>(args, pass, work); }
