// Causal attention over a KV cache in blocks; see kernels/paged_attention.py.
//
//   item      the queries of one request, as many as a tile has rows, on one KV head
//   row       one query: token and head; the G heads that share a KV head are rows of one tile
//   chunk     CHUNK keys from a multiple of CHUNK on: packed, multiplied, weighed, multiplied again
//   segment   SEGMENT keys from a multiple of SEGMENT on: summed up by themselves, and then merged
//
// Chunks and segments lie where positions say and not where a tile begins, and what is hidden from a row
// leaves it as it was. So a row is the same, to the last bit, decoded alone or in the middle of a prompt,
// whatever the tile, the batch and the threads.
#include "attention_desk.h"
#include "attention_few.h"

namespace {

template <typename T>
class Attending {
 public:
  Attending(const AttentionProblem<T>& problem, Work& work) : problem_(problem), desk_(work, problem) {}

  // `next` may be null: the tile that is likely to follow.
  void attend(const Tile& tile, const Tile* next) {
    load_queries(tile);
    const int64_t end = tile.last_position() + 1;
    desk_.whole.clear(tile.rows());
    for (int64_t from = first_chunk(tile); from < end;) {
      const int64_t to = std::min(end, (from / SEGMENT + 1) * SEGMENT);
      desk_.segment.clear(tile.rows());
      for (; from < to; from += CHUNK) {
        upcoming_.clear();
        if (tile.rows() < MANY_ROWS) expect_after(tile, from + CHUNK, next);
        attend_chunk(tile, from, std::min(CHUNK, to - from));
        upcoming_.fetch_all();
      }
      desk_.whole.add(desk_.segment, tile.rows());
    }
    store_out(tile);
  }

 private:
  // The position of the first key of the first chunk that a tile sees.
  int64_t first_chunk(const Tile& tile) const {
    return std::max<int64_t>(0, tile.position(0) - problem_.window + 1) / CHUNK * CHUNK;
  }

  // What is read after the chunk that ends at `from`.
  void expect_after(const Tile& tile, int64_t from, const Tile* next) {
    if (from <= tile.last_position())
      expect_chunk(tile, from);
    else if (next)
      expect_chunk(*next, first_chunk(*next));
  }

  void expect_chunk(const Tile& tile, int64_t first) {
    const Arena& arena = problem_.arena;
    const int64_t row_bytes = arena.width * arena.item_bytes;
    const int64_t end = std::min(first + CHUNK, tile.last_position() + 1);
    for (int64_t position = first, slot = first % arena.block_size; position < end; slot = 0) {
      const int64_t count = std::min(arena.block_size - slot, end - position);
      uint8_t* unit = arena.unit(tile.table[position / arena.block_size], tile.kv_head);
      for (int64_t is_value = 0; is_value < 2; is_value++) {
        upcoming_.add(arena.row(unit, is_value, slot), count * row_bytes);
        if (arena.items != Items::WIDE)
          upcoming_.add(reinterpret_cast<uint8_t*>(arena.scale(unit, is_value, slot)), 4 * count);
      }
      position += count;
    }
  }

  // Keys from position `first` on. `count` may be less than CHUNK: where the tile ends.
  void attend_chunk(const Tile& tile, int64_t first, int64_t count) {
    const uint8_t *keys[CHUNK], *values[CHUNK];
    find_rows(tile, first, count, keys, values);
    switch (tile.rows()) {
      case 1: return attend_few<1>(tile, first, count, keys, values);
      case 2: return attend_few<2>(tile, first, count, keys, values);
      case 3: return attend_few<3>(tile, first, count, keys, values);
      case 4: return attend_few<4>(tile, first, count, keys, values);
      case 5: return attend_few<5>(tile, first, count, keys, values);
      case 6: return attend_few<6>(tile, first, count, keys, values);
      case 7: return attend_few<7>(tile, first, count, keys, values);
      case 8: return attend_few<8>(tile, first, count, keys, values);
      default: return attend_many(tile, first, count, keys, values);
    }
  }

  template <int ROWS>
  void attend_few(const Tile& tile, int64_t first, int64_t count, const uint8_t* const* keys,
                  const uint8_t* const* values) {
    score_few<T, ROWS, CHUNK>(queries(), keys, problem_.padded_depth(), {desk_.scores, CHUNK}, upcoming_);
    weigh(tile, first);
    mix_few<T, ROWS>(weights(), values, cells_of(count), problem_.padded_width(), desk_.shrinks, sums(),
                     upcoming_);
  }

  void attend_many(const Tile& tile, int64_t first, int64_t count, const uint8_t* const* keys,
                   const uint8_t* const* values) {
    const int64_t width = problem_.padded_width();
    for (int64_t key = 0; key < count; key += 16) {
      upcoming_.fetch(int(width / 2));
      pack_keys(keys + key, problem_.padded_depth(), desk_.keys + key, CHUNK);
    }
    score_many(tile.rows(), round_up(count, 16));
    weigh(tile, first);
    for (int64_t key = 0; key < count; key += PER_CELL<T>) {
      upcoming_.fetch(int(width / 32));
      pack_values<T>(values + key, width, desk_.values + key / PER_CELL<T> * width);
    }
    multiply<T, CHUNK / PER_CELL<T>>(tile.rows(), weights().cells, {desk_.values, width},
                                     cells_of(count), width, desk_.shrinks, sums());
  }

  void score_many(int64_t rows, int64_t num_keys) {
    const Cells packed{desk_.keys, CHUNK};
    const Floats scores{desk_.scores, CHUNK};
    const int64_t depth = problem_.depth();
    switch (queries().stride) {
      case 16: return multiply<T, 16>(rows, desk_.queries, packed, depth, num_keys, nullptr, scores);
      case 32: return multiply<T, 32>(rows, desk_.queries, packed, depth, num_keys, nullptr, scores);
      case 64: return multiply<T, 64>(rows, desk_.queries, packed, depth, num_keys, nullptr, scores);
      case 128: return multiply<T, 128>(rows, desk_.queries, packed, depth, num_keys, nullptr, scores);
      default: return multiply<T, 256>(rows, desk_.queries, packed, depth, num_keys, nullptr, scores);
    }
  }

  static int64_t cells_of(int64_t count) { return (count + PER_CELL<T> - 1) / PER_CELL<T>; }
  Cells queries() const { return {desk_.queries, problem_.query_stride()}; }
  Cells weights() const { return {reinterpret_cast<const Cell*>(desk_.weights), CHUNK / PER_CELL<T>}; }
  Floats sums() const { return {desk_.segment.out, desk_.segment.stride}; }

  // Where the rows of a chunk lie; zeros follow them.
  void find_rows(const Tile& tile, int64_t first, int64_t count, const uint8_t** keys,
                 const uint8_t** values) {
    const Arena& arena = problem_.arena;
    const int64_t width = problem_.padded_width(), row_bytes = arena.width * arena.item_bytes;
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
        keys[key] = copy_row(keys[key], arena.scale(unit, 0, slot), desk_.rows + 2 * key * width);
        values[key] = copy_row(values[key], arena.scale(unit, 1, slot), desk_.rows + (2 * key + 1) * width);
      }
      key = end;
    }
    for (int64_t key = count; key < CHUNK; key++)
      keys[key] = values[key] = reinterpret_cast<const uint8_t*>(desk_.zeros(width));
  }

  // A row as T, followed by zeros up to the padded width.
  const uint8_t* copy_row(const uint8_t* row, const float* scale, T* copy) {
    const Arena& arena = problem_.arena;
    const int64_t padded = problem_.padded_width();
    if (arena.items != Items::WIDE) {
      dequantize(row, *scale, arena.items, arena.width, padded, copy);
    } else {
      memcpy(copy, row, size_t(arena.width) * sizeof(T));
      std::fill(copy + arena.width, copy + padded, T{});
    }
    return reinterpret_cast<const uint8_t*>(copy);
  }

  void weigh(const Tile& tile, int64_t first) {
    const State& state = desk_.segment;
    for (int64_t row = 0; row < tile.rows(); row++) {
      const int64_t position = positions_[row] - first;
      const Visible visible{std::max<int64_t>(0, position - problem_.window + 1),
                            std::min(CHUNK, position + 1)};
      float* scores = desk_.scores + row * CHUNK;
      const float top = std::max(state.tops[row], score_row<CHUNK>(scores, problem_.scoring, visible));
      const float shrink = exp2(splat(state.tops[row] - top))[0];
      weigh_row<T, CHUNK>(scores, top, shrink, desk_.weights + row * CHUNK, state.totals + 16 * row);
      desk_.shrinks[row] = shrink;
      state.tops[row] = top;
    }
  }

  int64_t place(const Tile& tile, int64_t row) const {
    const int64_t token = tile.first_token + tile.token(row);
    return (token * problem_.num_heads + tile.head(row)) * problem_.width();
  }

  void load_queries(const Tile& tile) {
    for (int64_t row = 0; row < tile.rows(); row++) {
      T* query = reinterpret_cast<T*>(desk_.queries + row * problem_.query_stride());
      memcpy(query, problem_.q + place(tile, row), size_t(problem_.width()) * sizeof(T));
      std::fill(query + problem_.width(), query + problem_.padded_width(), T{});
      positions_[row] = tile.position(row);
    }
  }

  void store_out(const Tile& tile) {
    const State& state = desk_.whole;
    for (int64_t row = 0; row < tile.rows(); row++) {
      float total = sum(load(state.totals + 16 * row)), shrink = 1;
      if (problem_.sinks && total > 0) {  // 0: no score was a number, and the row is not one either
        const float sink = problem_.sink(tile.head(row)), top = std::max(state.tops[row], sink);
        shrink = exp2(splat(state.tops[row] - top))[0];
        total = total * shrink + exp2(splat(sink - top))[0];
      }
      store_row(state.out + row * state.stride, shrink / total, problem_.out + place(tile, row));
    }
  }

  void store_row(const float* sums, float factor, T* out) const {
    const int64_t width = problem_.width();
    for (int64_t column = 0; column < width; column += 16 * PER_CELL<T>) {
      f32x16 part[PER_CELL<T>];
      for (int i = 0; i < PER_CELL<T>; i++) part[i] = load(sums + column + 16 * i) * splat(factor);
      if constexpr (PER_CELL<T> == 2) unshuffle(part[0], part[1]);
      for (int64_t i = 0; i < PER_CELL<T> && column + 16 * i < width; i++)
        store_up_to(out + column + 16 * i, part[i], width - column - 16 * i);
    }
  }

  const AttentionProblem<T>& problem_;
  Desk<T> desk_;
  int64_t positions_[TILE_ROWS];  // of the tile's rows
  Upcoming upcoming_;
};

// in: q, arena, query starts, context lengths, block tables, sinks [N] or null; out: as q
// i: N, K, H, S, items from one table to the next, window or 0, Items, unit bytes, sinks are float
// f: scale, soft cap or 0
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const AttentionProblem<T> problem(args);
  Tiles<T> tiles(problem, pass.num_requests);
  Attending<T> attending(problem, work);
  const int64_t count = tiles.count();
  Span span;
  while (work.take(count, 1, span))
    for (int64_t number = span.begin; number < span.end; number++) {
      const Tile tile = tiles[number];
      const bool is_last = number + 1 == count;
      const Tile next = is_last ? tile : tiles[number + 1];
      attending.attend(tile, is_last ? nullptr : &next);
    }
}

}  // namespace

OPERATOR(paged_attention_f32) { run<float>(args, pass, work); }
OPERATOR(paged_attention_bf16) { run<bf16>(args, pass, work); }
