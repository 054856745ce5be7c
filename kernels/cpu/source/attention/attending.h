// Attention of any kind, tile by tile.
//
//   row       one query: token and head; the G heads that share a KV head are rows of one tile
//   chunk     CHUNK keys from a multiple of CHUNK on: packed, multiplied, softmax, multiplied by values
//   segment   SEGMENT keys from a multiple of SEGMENT on: summed up on their own, and then merged
//
// Chunks and segments begin at fixed positions, not where a tile begins, and masked keys leave a row unchanged. So a
// row has the same bits whether it is decoded alone or in the middle of a prompt, whatever the tile, the batch and the
// threads. There is one exception: a NaN value also affects earlier rows of its chunk that are computed with it (0
// times NaN); its request fails anyhow.
#pragma once

#include "attention_items.h"
#include "attention_rows.h"
#include "attention_tiles.h"
#include "attention_workspace.h"

namespace {

template <typename Problem>
class Attending {
  using T = typename Problem::Value;

 public:
  Attending(const Problem& problem, Work& work)
      : problem_(problem),
        query_cells_(problem.padded_depth()),
        workspace_(work, problem, Problem::MOST_ROWS) {}

  // `next`: the item that is likely to follow, or null. `partials`: the sums of tiles that are cut.
  void attend(const Item& item, const Item* next, const Sums& partials) {
    const bool is_whole = item.first_partial < 0;
    const int64_t rows = item.first_tile.rows();
    for (int64_t head = 0; head < item.num_heads; head++) load_queries(item.tile(head), head * rows);
    bool has_some = false;
    for (int64_t segment = item.first_segment; segment < item.end_segment; segment++) {
      if (!is_whole) {
        const int64_t done = (segment - item.first_segment) * rows;
        sum_up(item, segment, {partials.from(item.first_partial + done), item.partials_a_head}, next);
      } else if (!is_masked(item.first_tile, segment)) {
        sum_up(item, segment, {has_some ? workspace_.segment : workspace_.whole, rows}, next);
        if (has_some) workspace_.whole.add(workspace_.segment, item.rows());
        has_some = true;
      }
    }
    for (int64_t row = 0; is_whole && row < item.rows(); row++)
      store_out(problem_, item.tile(row / rows), row % rows, workspace_.whole.from(row));
  }

  // Merges the pieces of a tile, once all are computed.
  void merge_pieces(const CutRow& cut, const Sums& partials) {
    workspace_.whole.copy(partials.from(cut.first_partial), 1);
    for (int64_t segment = 1; segment < cut.num_segments; segment++)
      workspace_.whole.add(partials.from(cut.first_partial + segment * cut.stride), 1);
    store_out(problem_, cut.tile, cut.row, workspace_.whole);
  }

 private:
  // Sums of a segment; those of the next KV head are `stride` rows later.
  struct HeadSums {
    Sums first;
    int64_t stride;

    Sums of(int64_t head) const { return first.from(head * stride); }
  };

  int64_t first_key(const Item& item) const {
    return problem_.next_chunk(item.first_tile.position(0), item.first_segment * SEGMENT);
  }
  static int64_t end_key(const Item& item) {
    return std::min(item.end_segment * SEGMENT, item.first_tile.last_position() + 1);
  }

  // Whether all rows of the tile mask the segment.
  bool is_masked(const Tile& tile, int64_t segment) const {
    return problem_.next_chunk(tile.position(0), segment * SEGMENT) >= (segment + 1) * SEGMENT;
  }

  void sum_up(const Item& item, int64_t segment, const HeadSums& sums, const Item* next) {
    const int64_t rows = item.first_tile.rows(), position = item.first_tile.position(0);
    for (int64_t head = 0; head < item.num_heads; head++) sums.of(head).clear(rows);
    const int64_t end = std::min(end_key(item), (segment + 1) * SEGMENT);
    int64_t from = problem_.next_chunk(position, segment * SEGMENT);
    while (from < end) {
      const int64_t following = problem_.next_chunk(position, from + CHUNK);
      for (int64_t head = 0; head < item.num_heads; head++) {
        upcoming_.clear();
        if (head + 1 < item.num_heads)
          prefetch_keys(item, head + 1, from);
        else
          prefetch_after(item, following, next);
        sums_ = sums.of(head);
        queries_ = workspace_.queries + head * rows * query_cells_;
        is_next_head_ = head > 0;
        attend_chunk(item.tile(head), from, std::min(CHUNK, end - from));
        upcoming_.fetch_all();
      }
      from = following;
    }
  }

  // Prefetches the chunk of keys from `from` on.
  void prefetch_keys(const Item& item, int64_t head, int64_t from) {
    problem_.prefetch_rows(item.tile(head), from, std::min(CHUNK, end_key(item) - from), upcoming_);
  }

  // Prefetches what is read from key `from` on, or else what the next item reads.
  void prefetch_after(const Item& item, int64_t from, const Item* next) {
    if (from < end_key(item))
      prefetch_keys(item, 0, from);
    else if (next)
      prefetch_keys(*next, 0, first_key(*next));
  }

  // Keys from position `first` on. `count` is less than CHUNK at the end of the tile.
  void attend_chunk(const Tile& tile, int64_t first, int64_t count) {
    if constexpr (Problem::HAS_OPEN) {
      const int64_t cached = std::min(count, problem_.own_block(tile.last_position()) - first);
      if (cached > 0) attend_rows(tile, first, cached, Rows::CACHED);
      if (problem_.own_block(tile.position(0)) < first + count) attend_rows(tile, first, count, Rows::OPEN);
    } else {
      attend_rows(tile, first, count, Rows::CACHED);
    }
  }

  void attend_rows(const Tile& tile, int64_t first, int64_t count, Rows rows) {
    const uint8_t **keys = key_rows_, **values = value_rows_;
    rows_ = rows;
    if (is_next_head_ && problem_.is_read_in_place())
      problem_.find_rows_of_next_head(count, keys, values);
    else if constexpr (Problem::HAS_OPEN)
      problem_.find_rows(tile, first, count, rows, workspace_.copies, keys, values);
    else
      problem_.find_rows(tile, first, count, workspace_.copies, keys, values);
    if (problem_.has_scales()) problem_.find_scales(tile, first, count, scales_);
    for (int64_t key = count; key < CHUNK; key++)
      keys[key] = values[key] = reinterpret_cast<const uint8_t*>(workspace_.zeros);
    if (is_few(tile))
      attend_few(tile.rows(), first, count, keys, values);
    else
      attend_many(tile, first, count, keys, values);
  }

  bool is_few(const Tile& tile) const {
    return tile.rows() <= (attends_by_tiles<T>() ? FEW_ROWS_BESIDE_TILES : problem_.few_rows());
  }

  void attend_few(int64_t rows, int64_t first, int64_t count, const uint8_t* const* keys,
                  const uint8_t* const* values) {
    const Cells queries{queries_, query_cells_};
    const Floats scores{workspace_.scores, CHUNK};
    const int64_t depth = cells_of(count), width = problem_.padded_value();
    if constexpr (MULTIPLIES_BYTES<T>) {
      if (problem_.is_bytes()) {
        score_few_bytes(problem_.items, rows, queries, keys, query_cells_, scores, upcoming_);
        weigh(first, 0, rows);
        return mix_few_bytes(problem_.items, rows, weights().cells, values, depth, width, workspace_.rescales, out(),
                             upcoming_);
      }
    }
    score_few<T>(rows, queries, keys, query_cells_, scores, upcoming_);
    weigh(first, 0, rows);
    mix_few<T>(rows, weights().cells, values, depth, width, workspace_.rescales, out(), upcoming_);
  }

  void attend_many(const Tile& tile, int64_t first, int64_t count, const uint8_t* const* keys,
                   const uint8_t* const* values) {
    const int64_t width = problem_.padded_value();
    const int64_t end = attends_by_tiles<T>() ? round_up(count, 2 * TILE_CELLS) : count;  // of keys that are packed
    for (int64_t key = 0; key < end; key += 16) pack_sixteen_keys(keys + key, workspace_.keys + key);
    each_band(tile, first, count, [&](int64_t row, int64_t rows, int64_t seen) {
      const int64_t group = QUERY_GROUP * query_cells_;
      multiply<T, Rowwise::QUERIES>(rows, queries_ + row / QUERY_GROUP * group, group,
                                    {workspace_.keys, CHUNK}, problem_.depth(), round_up(seen, 16), nullptr,
                                    {workspace_.scores, CHUNK});
      weigh(first, row, rows);
    });
    for (int64_t key = 0; key < end; key += PER_CELL<T>)
      pack_row_of_values(values + key, workspace_.values + key / PER_CELL<T> * width);
    each_band(tile, first, count, [&](int64_t row, int64_t rows, int64_t seen) {
      const Sums sums = sums_.from(row);
      multiply<T, Rowwise::WEIGHTS>(rows, weights().cells + row * weights().stride,
                                    QUERY_GROUP * weights().stride, {workspace_.values, width}, cells_of(seen),
                                    width, workspace_.rescales + row, {sums.values(0), sums.stride()});
    });
  }

  void pack_sixteen_keys(const uint8_t* const* keys, Cell* into) const {
    const int64_t num_cells = problem_.padded_depth();
    if constexpr (MULTIPLIES_BYTES<T>) {
      if (problem_.is_bytes()) return pack_key_bytes(problem_.items, keys, num_cells, into, CHUNK);
    }
    pack_keys(keys, num_cells, into, CHUNK);
  }

  void pack_row_of_values(const uint8_t* const* values, Cell* into) const {
    const int64_t width = problem_.padded_value();
    if constexpr (MULTIPLIES_BYTES<T>) {
      if (problem_.is_bytes()) return pack_value_bytes(problem_.items, values, width, into);
    }
    pack_values<T>(values, width, into);
  }

  // Calls do_band(first row, number of rows, range of the keys of the chunk that any of them sees) for all rows at once
  // or, in the chunk in which rows end, for a few rows at a time, so that few masked scores are computed. Matrix tiles
  // take as long for a few rows as for many, and always get all. Each call prefetches a share of what is read next.
  template <typename DoBand>
  void each_band(const Tile& tile, int64_t first, int64_t count, DoBand do_band) {
    const bool is_narrow = visible(0, first).end < count && !attends_by_tiles<T>();
    const int64_t rows = tile.rows(), step = is_narrow ? BAND_ROWS : L1_ROWS;
    const int64_t share = attends_by_tiles<T>() ? std::min(step, rows) : step;
    const int lines = int(upcoming_.num_lines() * share / (2 * rows) + 1);
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t size = std::min(step, rows - row), seen = visible(row + size - 1, first).end;
      upcoming_.fetch(lines);
      if (seen > 0) do_band(row, size, std::min(seen, count));
    }
  }

  Visible visible(int64_t row, int64_t first) const { return problem_.visible(positions_[row], first, rows_); }
  static int64_t cells_of(int64_t count) { return (count + PER_CELL<T> - 1) / PER_CELL<T>; }
  Cells weights() const { return {reinterpret_cast<const Cell*>(workspace_.weights), WEIGHT_CELLS<T>}; }
  Floats out() const { return {sums_.values(0), sums_.stride()}; }

  void weigh(int64_t first, int64_t begin, int64_t count) {
    Visible seen[L1_ROWS];
    const bool sees_all = visible(begin, first).end == CHUNK && visible(begin + count - 1, first).begin == 0;
    for (int64_t row = 0; row < count && !sees_all; row++) seen[row] = visible(begin + row, first);
    const bool has_scales = problem_.has_scales();
    const Weighing what{count, problem_.scoring, has_scales ? scales_.keys : nullptr,
                        has_scales ? scales_.values : nullptr};
    const Totals totals{&sums_.top(begin), sums_.totals(begin), sums_.stride()};
    ::weigh(what, sees_all ? nullptr : seen, workspace_.scores, totals, workspace_.weights + begin * CHUNK,
            workspace_.rescales + begin);
  }

  // Stores queries from row `first` on at their places.
  void load_queries(const Tile& tile, int64_t first) {
    const bool is_rowwise = is_few(tile) || attends_by_tiles<T>();
    Cell* const queries = workspace_.queries + first * query_cells_;
    const uint8_t* among[QUERIES_AT_ONCE];
    std::fill(among, among + QUERIES_AT_ONCE, reinterpret_cast<const uint8_t*>(workspace_.zeros));
    for (int64_t row = 0; row < tile.rows(); row++) {
      const int64_t place = row % QUERIES_AT_ONCE, token = tile.first_token + tile.token(row);
      Cell* const cells = is_rowwise ? queries + row * query_cells_ : workspace_.some_queries + place * query_cells_;
      const T* query = is_rowwise ? nullptr : problem_.find_query(token, tile.head(row));
      if (!query) query = copy_query(problem_, token, tile.head(row), reinterpret_cast<T*>(cells));
      positions_[row] = tile.position(row);
      among[place] = reinterpret_cast<const uint8_t*>(query);
      const bool is_last = place + 1 == QUERIES_AT_ONCE || row + 1 == tile.rows();
      if (!is_rowwise && is_last) group_queries(among, query_cells_, queries + (row - place) * query_cells_);
    }
  }

  const Problem& problem_;
  int64_t query_cells_;  // of a row
  Workspace<T> workspace_;
  Sums sums_;               // of the segment and the KV head at hand
  const Cell* queries_;     // likewise
  const uint8_t *key_rows_[CHUNK], *value_rows_[CHUNK];  // of the chunk at hand
  bool is_next_head_ = false;  // of the same chunk as before
  int64_t positions_[Problem::MOST_ROWS];  // of the tile's rows
  Rows rows_ = Rows::CACHED;               // of the chunk at hand
  RowScales scales_;                       // likewise, where rows have some
  Upcoming upcoming_;
};

// Computes the attention of a whole pass.
template <typename Problem, typename Given>
void attend(const Given& args, const Pass& pass, Work& work) {
  const Problem problem(args, pass);
  const int64_t width = problem.padded_value();
  const int64_t partial_row_bytes = Sums::floats_a_row(width) * int64_t(sizeof(float));
  const AttentionItems<typename Problem::Value> items(problem, Problem::MOST_ROWS, partial_row_bytes,
                                                      work.num_threads());
  Attending<Problem> attending(problem, work);
  Sums partials;
  if (items.num_partial_rows())
    partials = {static_cast<float*>(work.shared(size_t(items.num_partial_rows() * partial_row_bytes))), width};
  Span span;
  while (work.take(items.count(), 1, span))
    for (int64_t number = span.begin; number < span.end; number++) {
      const Item item = items[number];
      const bool is_last = number + 1 == items.count();
      const Item next = is_last ? item : items[number + 1];
      attending.attend(item, is_last ? nullptr : &next, partials);
    }
  if (!items.num_cut_rows()) return;
  work.barrier();
  while (work.take(items.num_cut_rows(), grain_of(items.num_cut_rows(), work), span))
    for (int64_t number = span.begin; number < span.end; number++)
      attending.merge_pieces(items.cut_row(number), partials);
}

}  // namespace
