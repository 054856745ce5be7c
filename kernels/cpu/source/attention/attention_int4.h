// Attention over int4 blocks, and over each token's own block, which is not quantized; see
// kernels/paging/int4_arena.py.
#pragma once

#include "attention_kv.h"
#include "pass_rows.h"
#include "int4_unit.h"

namespace {

template <typename T>
struct Int4Args : KvArgs<T> {
  FIELDS(KvArgs<T>, T* pass_rows;)  // see pass_rows.h
};

template <typename T>
struct Int4Problem : KvProblem<T> {
  static constexpr bool HAS_OPEN = true;

  PassRows<T> pass;

  Int4Problem(const Int4Args<T>& args, const Pass& of)
      : KvProblem<T>(args, of),
        pass{args.pass_rows, args.num_kv_heads, args.block_size, args.width} {}

  bool is_read_in_place() const { return false; }

  // Position at which the block of a position begins.
  int64_t own_block(int64_t position) const { return position / this->block_size * this->block_size; }

  Visible visible(int64_t position, int64_t first, Rows rows) const {
    Visible seen = KvProblem<T>::visible(position, first, rows);
    const int64_t own = own_block(position) - first;
    if (rows == Rows::CACHED) {
      seen.end = std::min(seen.end, own);
      seen.first_end = std::min(seen.first_end, own);
    } else {
      seen.begin = std::max(seen.begin, own);
      seen.first_begin = std::max<int64_t>(0, own);
    }
    return seen;
  }

  void find_rows(const Tile& tile, int64_t first, int64_t count, Rows rows, T* copies, const uint8_t** keys,
                 const uint8_t** values) const {
    if (rows == Rows::CACHED)
      find_quantized(tile, first, count, copies, keys, values);
    else
      find_open(tile, first, count, copies, keys, values);
  }

  void prefetch_rows(const Tile& tile, int64_t first, int64_t count, Upcoming& upcoming) const {
    const int64_t stop = std::min(first + count, own_block(tile.last_position()));
    for (int64_t block = first / this->block_size; block * this->block_size < stop; block++)
      upcoming.add(this->arena.unit(tile.table[block], tile.kv_head), this->arena.unit_bytes);
  }

 private:
  void find_quantized(const Tile& tile, int64_t first, int64_t count, T* copies, const uint8_t** keys,
                   const uint8_t** values) const {
    const int64_t padded = this->padded_key(), size = this->block_size;
    T *key_copies = copies, *value_copies = copies + CHUNK * padded;
    for (int64_t key = 0; key < count;) {
      const int64_t slot = (first + key) % size, end = std::min(count, key + size - slot);
      const int64_t block = tile.table[(first + key) / size];
      const Int4Unit unit{this->arena.unit(block, tile.kv_head), size, this->arena.width};
      const Dequantizing<T> dequantizing(unit, slot, slot + end - key, padded);
      dequantizing.keys(key_copies + key * padded);
      dequantizing.values(value_copies + key * padded);
      for (; key < end; key++) {
        keys[key] = reinterpret_cast<const uint8_t*>(key_copies + key * padded);
        values[key] = reinterpret_cast<const uint8_t*>(value_copies + key * padded);
      }
    }
  }

  // Positions before the first block of the pass have no open rows: they are masked, and their rows are arbitrary.
  void find_open(const Tile& tile, int64_t first, int64_t count, T* copies, const uint8_t** keys,
                 const uint8_t** values) const {
    const int64_t request = (tile.table - this->block_tables) / this->table_stride;
    const int64_t number = pass.first(request, tile.first_token), begin = own_block(tile.past);
    for (int64_t key = 0; key < count; key++) {
      const int64_t row = number + std::max<int64_t>(0, first + key - begin);
      keys[key] = padded(pass.row(row, tile.kv_head, 0), copies + 2 * key * this->padded_key());
      values[key] = padded(pass.row(row, tile.kv_head, 1), copies + (2 * key + 1) * this->padded_key());
    }
  }

  const uint8_t* padded(const T* row, T* copy) const {
    const int64_t width = this->arena.width, wanted = this->padded_key();
    if (wanted == width) return reinterpret_cast<const uint8_t*>(row);
    std::copy(row, row + width, copy);
    std::fill(copy + width, copy + wanted, T{});
    return reinterpret_cast<const uint8_t*>(copy);
  }
};

}  // namespace
