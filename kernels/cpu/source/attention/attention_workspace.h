// The working memory of one thread for a tile: packed operands, scores, and the sums of each row.
#pragma once

#include "attention_problem.h"

namespace {

// The softmax state of rows: for each its largest score, its total weight by lane, and its weighted values.
class Sums {
 public:
  Sums() = default;
  Sums(float* memory, int64_t width) : memory_(memory), width_(width) {}

  static int64_t floats_a_row(int64_t width) { return 32 + width; }

  float& top(int64_t row) const { return memory_[row * stride()]; }
  float* totals(int64_t row) const { return memory_ + row * stride() + 16; }
  float* values(int64_t row) const { return memory_ + row * stride() + 32; }
  int64_t stride() const { return floats_a_row(width_); }
  Sums from(int64_t row) const { return {memory_ + row * stride(), width_}; }

  void clear(int64_t rows) const {
    for (int64_t row = 0; row < rows; row++) {
      std::fill(totals(row), values(row) + width_, 0.0f);
      top(row) = NOTHING_YET;
    }
  }

  void copy(const Sums& other, int64_t rows) const {
    std::copy(other.memory_, other.memory_ + rows * stride(), memory_);
  }

  void add(const Sums& other, int64_t rows) const {
    for (int64_t row = 0; row < rows; row += 16)
      from(row).add_sixteen(other.from(row), std::min<int64_t>(16, rows - row));
  }

 private:
  void add_sixteen(const Sums& other, int64_t rows) const {
    float mine[16] = {}, its[16] = {};
    for (int64_t row = 0; row < rows; row++) {
      const float highest = std::max(top(row), other.top(row));
      mine[row] = top(row) - highest;
      its[row] = other.top(row) - highest;
      top(row) = highest;
    }
    store(mine, powers_of_2(load(mine)));
    store(its, powers_of_2(load(its)));
    for (int64_t row = 0; row < rows; row++) {
      float* a = totals(row);  // and the values behind them
      const float* b = other.totals(row);
      for (int64_t i = 0; i < 16 + width_; i += 16)
        store(a + i, fma(load(a + i), splat(mine[row]), load(b + i) * splat(its[row])));
    }
  }

  float* memory_ = nullptr;  // [rows][16 + 16 + width]
  int64_t width_ = 0;
};

// The memory of one thread, divided up for a tile.
template <typename T>
struct Workspace {
  Cell *queries, *some_queries;   // [rows][depth] if they are few, else in groups; [QUERIES_AT_ONCE][depth]
  Cell *keys, *values;            // [depth][CHUNK], [CHUNK / PER_CELL][value width]
  float *scores, *rescales;        // [L1_ROWS][CHUNK], [rows]
  T *weights, *copies, *zeros;    // [rows][CHUNK], [2 CHUNK][key width], [key width]
  Sums segment, whole;

  Workspace(Work& work, const AttentionProblem<T>& problem, int64_t most_rows) {
    const int64_t key = problem.padded_key(), value = problem.padded_value();
    uint8_t* next = nullptr;
    for (int pass = 0; pass < 2; pass++) {  // to measure, then to lay out
      uint8_t* start = next;
      allot(next, queries, round_up(most_rows, QUERIES_AT_ONCE) * problem.padded_depth());
      allot(next, some_queries, QUERIES_AT_ONCE * problem.padded_depth());
      allot(next, keys, problem.padded_depth() * CHUNK);
      allot(next, values, CHUNK / PER_CELL<T> * value);
      allot(next, scores, L1_ROWS * CHUNK);
      allot(next, rescales, most_rows);
      allot(next, weights, most_rows * CHUNK);
      allot(next, copies, 2 * CHUNK * key);
      allot(next, zeros, key);
      for (Sums* sums : {&segment, &whole}) {
        float* memory;
        allot(next, memory, most_rows * Sums::floats_a_row(value));
        *sums = {memory, value};
      }
      if (pass == 0) next = static_cast<uint8_t*>(work.scratch(size_t(next - start)));
    }
    std::fill(zeros, zeros + key, T{});
  }

 private:
  template <typename U>
  static void allot(uint8_t*& next, U*& array, int64_t count) {
    array = reinterpret_cast<U*>(next);
    next += round_up(count * int64_t(sizeof(U)), 64);
  }
};

}  // namespace
