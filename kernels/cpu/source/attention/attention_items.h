// Cuts attention into work items, which threads take.
//
//   tile      some rows of a request on one KV head, and all keys that they see
//   item      a tile, or those of several KV heads if they have few rows each; or, if that would keep one thread busy
//             while others are idle, a piece of them: some of their segments, whose partial sums are merged at the end
//
// The KV heads of a block are adjacent, so an item of all of them reads memory in order.
//
// The sums of a segment are the same wherever they are computed, and they are merged in the order of the keys. So
// whether a tile is cut, and into how many pieces, does not affect results.
#pragma once

#include <vector>

#include "attention_problem.h"

namespace {

constexpr int64_t ITEMS_A_THREAD = 4;        // if all had the same work: fewer would be uneven
constexpr int64_t LEAST_ROWS = 32;           // of a tile, as far as there are as many
constexpr int64_t PARTIAL_BYTES = 256ll << 20;  // of sums; tiles beyond stay whole

// Tiles that differ only in the KV head.
struct TileGroup {
  int64_t request, begin, end;  // rows
  int64_t first_segment, num_segments, segments_a_piece, heads_an_item;
  int64_t first_item, first_cut_row, first_partial;  // of all that are numbered

  int64_t rows() const { return end - begin; }
  int64_t num_pieces() const { return (num_segments + segments_a_piece - 1) / segments_a_piece; }
  bool is_cut() const { return segments_a_piece < num_segments; }
  int64_t partials_a_head() const { return num_segments * rows(); }

  // Groups of eight rows, for products that take eight rows at a time.
  int64_t row_groups() const { return (rows() + 7) / 8; }
};

struct Item {
  Tile first_tile;    // of `num_heads` KV heads
  int64_t num_heads;  // more than 1 if rows are few
  int64_t first_segment, end_segment;
  int64_t first_partial;  // the row of sums for the first row of the first segment; -1: tiles are whole
  int64_t partials_a_head;

  int64_t rows() const { return num_heads * first_tile.rows(); }
  Tile tile(int64_t number) const {
    Tile of_head = first_tile;
    of_head.kv_head += number;
    return of_head;
  }
};

// A row of a tile that was cut: its partial sums are `stride` apart.
struct CutRow {
  Tile tile;
  int64_t row, num_segments, first_partial, stride;
};

// The division of a pass. Each thread computes it on its own, with the same result.
template <typename T>
class AttentionItems {
 public:
  AttentionItems(const AttentionProblem<T>& problem, int64_t most_rows, int64_t partial_row_bytes, int num_threads)
      : problem_(problem), groups_(groups_of_thread()) {
    groups_.clear();
    tile_rows_ = num_threads == 1 ? most_rows : shared_tile_rows(most_rows, num_threads);
    for (int64_t request = 0; request < problem.num_requests; request++) add_tiles(request);
    int64_t work = 0;
    for (const TileGroup& group : groups_)
      work += group.num_segments * group.row_groups() * problem.num_kv_heads;
    const int64_t longest = num_threads == 1 ? work : work / (num_threads * ITEMS_A_THREAD) + 1;
    for (TileGroup& group : groups_) number(group, longest, most_rows, PARTIAL_BYTES / partial_row_bytes);
  }

  int64_t count() const { return num_items_; }
  int64_t num_cut_rows() const { return num_cut_rows_; }
  int64_t num_partial_rows() const { return num_partials_; }

  Item operator[](int64_t number) const {
    const TileGroup& group = find(number, &TileGroup::first_item);
    const int64_t place = number - group.first_item, parts = head_parts(group);
    const int64_t head = place % parts * group.heads_an_item, first = place / parts * group.segments_a_piece;
    const int64_t end = std::min(first + group.segments_a_piece, group.num_segments);
    return {tile(group, head),
            std::min(group.heads_an_item, problem_.num_kv_heads - head),
            group.first_segment + first,
            group.first_segment + end,
            group.is_cut() ? partials(group, head) + first * group.rows() : -1,
            group.partials_a_head()};
  }

  CutRow cut_row(int64_t number) const {
    const TileGroup& group = find(number, &TileGroup::first_cut_row);
    const int64_t place = number - group.first_cut_row, row = place % group.rows();
    const int64_t head = place / group.rows();
    return {tile(group, head), row, group.num_segments, partials(group, head) + row, group.rows()};
  }

 private:
  static std::vector<TileGroup>& groups_of_thread() {
    static thread_local std::vector<TileGroup> groups;
    return groups;
  }

  // The more rows a tile has, the less often keys are packed; but there must be enough tiles for all threads.
  int64_t shared_tile_rows(int64_t most_rows, int num_threads) const {
    int64_t work = 0;  // rows times segments, about
    for (int64_t request = 0; request < problem_.num_requests; request++) {
      const int64_t tokens = problem_.query_starts[request + 1] - problem_.query_starts[request];
      const int64_t seen = std::min(problem_.context_lens[request], std::abs(problem_.window) + tokens);
      work += tokens * problem_.num_heads * (seen / SEGMENT + 1);
    }
    const int64_t share = std::max<int64_t>(LEAST_ROWS, work / (num_threads * ITEMS_A_THREAD));
    return std::min(most_rows, int64_t(std::bit_floor(uint64_t(share))));
  }

  // Tiles are added from the last to the first, as the last sees the most keys.
  void add_tiles(int64_t request) {
    const int64_t tokens = problem_.query_starts[request + 1] - problem_.query_starts[request];
    const int64_t rows = tokens * problem_.group();
    for (int64_t end = rows; end > 0; end = (end - 1) / tile_rows_ * tile_rows_) {
      TileGroup group{request, (end - 1) / tile_rows_ * tile_rows_, end, 0, 0, 0, 0, 0, 0, 0};
      const Tile all = tile(group, 0);
      group.first_segment = problem_.first_chunk(all.position(0)) / SEGMENT;
      group.num_segments = all.last_position() / SEGMENT + 1 - group.first_segment;
      groups_.push_back(group);
    }
  }

  void number(TileGroup& group, int64_t longest, int64_t most_rows, int64_t most_partials) {
    const int64_t kv_heads = problem_.num_kv_heads;
    const int64_t partials = group.partials_a_head() * kv_heads;
    const int64_t most_heads = group.rows() <= problem_.few_rows() ? std::min(kv_heads, most_rows / group.rows()) : 1;
    const int64_t work = std::max<int64_t>(1, longest / group.row_groups());  // segments of one head
    // All heads of some segments or, if that is too much work, some heads of all segments.
    group.heads_an_item = work >= most_heads ? most_heads : std::clamp(work / group.num_segments, int64_t(1), most_heads);
    group.segments_a_piece = std::max<int64_t>(1, work / group.heads_an_item);
    if (num_partials_ + partials > most_partials) group.segments_a_piece = group.num_segments;
    group.first_item = num_items_;
    group.first_cut_row = num_cut_rows_;
    group.first_partial = num_partials_;
    num_items_ += group.num_pieces() * head_parts(group);
    if (!group.is_cut()) return;
    num_cut_rows_ += group.rows() * kv_heads;
    num_partials_ += partials;
  }

  // The last group whose `first` is at most `number`: of groups with the same `first`, only the last is not empty.
  const TileGroup& find(int64_t number, int64_t TileGroup::* first) const {
    const auto is_before = [&](int64_t n, const TileGroup& group) { return n < group.*first; };
    return *(std::upper_bound(groups_.begin(), groups_.end(), number, is_before) - 1);
  }

  int64_t partials(const TileGroup& group, int64_t head) const {
    return group.first_partial + head * group.partials_a_head();
  }

  int64_t head_parts(const TileGroup& group) const {
    return (problem_.num_kv_heads + group.heads_an_item - 1) / group.heads_an_item;
  }

  Tile tile(const TileGroup& group, int64_t head) const {
    const int64_t start = problem_.query_starts[group.request];
    const int64_t tokens = problem_.query_starts[group.request + 1] - start;
    return {problem_.block_tables + group.request * problem_.table_stride,
            head,
            problem_.group(),
            start,
            problem_.context_lens[group.request] - tokens,
            group.begin,
            group.end};
  }

  const AttentionProblem<T>& problem_;
  std::vector<TileGroup>& groups_;
  int64_t tile_rows_;
  int64_t num_items_ = 0, num_cut_rows_ = 0, num_partials_ = 0;
};

}  // namespace
