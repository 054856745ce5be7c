// Low-rank updates of a product, with an adapter for each row; see kernels/products/low_rank.py.
//
//   inner = x D^T       a sum is one vector along K, which is added up at its end
//   y    += inner U     outputs lie along vectors, and are summed in the order of ranks
//
// Rows are ordered by adapter and cut into blocks, so that a matrix is read once for several rows. The order of
// additions does not depend on the other rows of a block. If no row has an adapter, no thread waits for another.
#include <algorithm>

#include "linear_tile.h"
#include "rows.h"

namespace {

template <typename T>
struct LowRankArgs : Args {
  FIELDS(Args,
         T* y;                    // [rows][N], updated
         const T* x;              // [rows][stride]
         const T* down;           // D [num_adapters][num_parts][rank][width]
         const T* up;             // U [num_adapters][rank][N]
         const int64_t* parts;    // [num_parts], the outputs of each, N in all
         const int64_t* numbers;  // [rows or more], the number of each row's adapter, counted from 1; 0 for none
         int64_t num_adapters;
         int64_t num_parts;
         int64_t rank;
         int64_t width;
         int64_t stride;)         // items from row to row of x
};

constexpr int64_t BLOCK_ROWS = 16;
constexpr int64_t MAX_CHUNK = 1024;  // columns of an item of work
constexpr int64_t MIN_CHUNK = 256;
constexpr int64_t SUMS_STRIDE = MAX_CHUNK + 32;  // not a multiple of a page, or rows would evict one another
constexpr int64_t UNIT = 32;  // columns that are computed together at least
constexpr int UNIT_VECTORS = UNIT / LANES;
constexpr int PER_16 = 16 / LANES;  // vectors of 16 floats

#if defined(__AVX512F__)
constexpr int DOT_ROWS = 4, DOT_RANKS = 4, ADD_ROWS = 4;
#elif (defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__)
constexpr int DOT_ROWS = 2, DOT_RANKS = 2, ADD_ROWS = 2;
#else
constexpr int DOT_ROWS = 1, DOT_RANKS = 2, ADD_ROWS = 1;
#endif
// Ranks whose rows of U are read at a time. A single row waits for memory, which is read fastest in a few long runs.
constexpr int64_t slice_of(int rows) { return rows == 1 ? 8 : 16; }
// A single row has more columns at a time, because more sums must be on their way than a vector unit has stages.
constexpr int vectors_at_once(int rows) { return rows == 1 ? std::max(8, UNIT_VECTORS) : std::max(4, UNIT_VECTORS); }

// The rows that have an adapter, ordered by it and otherwise as they are, in blocks of one adapter each.
struct Grouping {
  struct Block {
    int64_t adapter, first, count;  // `first` in the order of `rows`
  };

  int64_t num_rows = 0, num_blocks = 0;
  int64_t* rows = nullptr;
  Block* blocks = nullptr;

  Grouping(const int64_t* numbers, int64_t all_rows, int64_t num_adapters, Work& work) {
    const auto has_adapter = [&](int64_t row) { return uint64_t(numbers[row] - 1) < uint64_t(num_adapters); };
    for (int64_t row = 0; row < all_rows; row++) num_rows += has_adapter(row);
    if (num_rows == 0) return;
    const int64_t num_words = num_rows + num_adapters + 1;
    blocks = static_cast<Block*>(work.scratch(size_t(num_rows) * sizeof(Block) + size_t(num_words) * sizeof(int64_t)));
    rows = reinterpret_cast<int64_t*>(blocks + num_rows);
    int64_t* ends = rows + num_rows;  // of the rows before each adapter at first
    std::fill(ends, ends + num_adapters + 1, 0);
    for (int64_t row = 0; row < all_rows; row++)
      if (has_adapter(row)) ends[numbers[row]]++;
    for (int64_t i = 0; i < num_adapters; i++) ends[i + 1] += ends[i];
    for (int64_t row = 0; row < all_rows; row++)
      if (has_adapter(row)) rows[ends[numbers[row] - 1]++] = row;
    for (int64_t adapter = 0, first = 0; adapter < num_adapters; adapter++)
      for (; first < ends[adapter]; first += blocks[num_blocks++].count)
        blocks[num_blocks] = {adapter, first, std::min(BLOCK_ROWS, ends[adapter] - first)};
  }
};

// Four bytes of a row of x times four bytes of a row of D in each lane.
template <typename T>
struct Pairs;

template <>
struct Pairs<float> {
  static Lanes add(Lanes sum, Words x, Words d) { return multiply_add((Lanes)x, (Lanes)d, sum); }
};

template <>
struct Pairs<bf16> {
  static Lanes add(Lanes sum, Words x, Words d) {
#if defined(__AVX512BF16__)
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)d);
#else
    sum = multiply_add((Lanes)(x << 16), (Lanes)(d << 16), sum);
    return multiply_add((Lanes)(x & 0xFFFF0000u), (Lanes)(d & 0xFFFF0000u), sum);
#endif
  }
};

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));

// Sixteen lanes added up to four, by halves.
static inline f32x4 quarter(const Lanes (&v)[PER_16]) {
  f32x16 all;
  memcpy(&all, v, sizeof(all));
  const f32x8 half = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
}

// The sums of sixteen lanes, by halves.
template <int COUNT>
static inline void add_up(const Lanes (&v)[COUNT][PER_16], float* sums) {
  if constexpr (COUNT == 4) {
    const f32x4 a = quarter(v[0]), b = quarter(v[1]), c = quarter(v[2]), d = quarter(v[3]);
    const f32x4 ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
    const f32x4 cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
    const f32x4 all = __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
    memcpy(sums, &all, sizeof(all));
  } else {
    for (int i = 0; i < COUNT; i++) {
      const f32x4 x = quarter(v[i]);
      sums[i] = (x[0] + x[2]) + (x[1] + x[3]);
    }
  }
}

// The sums of some rows of x and of some adjacent rows of D, over all of K; the rows of D behind them are prefetched.
template <int ROWS, int RANKS, typename T>
void dot_tile(const T* const* x, const T* down, int64_t width, float* const* inner) {
  constexpr int64_t ITEMS = 64 / sizeof(T);
  Lanes sums[ROWS][RANKS][PER_16] = {};
  const auto add = [&](const auto& x_words, const auto& d_words) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int v = 0; v < PER_16; v++) {
      Words d[RANKS];
#pragma GCC unroll 4
      for (int j = 0; j < RANKS; j++) {
        d[j] = d_words(j, v);
        keep_in_register(d[j]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < ROWS; i++) {
        const Words x_of_row = x_words(i, v);
#pragma GCC unroll 4
        for (int j = 0; j < RANKS; j++) sums[i][j][v] = Pairs<T>::add(sums[i][j][v], x_of_row, d[j]);
      }
    }
  };
  const auto words = [](const T* items, int v) {
    Words all;
    memcpy(&all, reinterpret_cast<const char*>(items) + v * sizeof(Words), sizeof(Words));
    return all;
  };
  int64_t k = 0;
  for (; k + ITEMS <= width; k += ITEMS) {
    for (int j = 0; j < RANKS; j++) __builtin_prefetch(down + (RANKS + j) * width + k, 0, 3);
    add([&](int i, int v) { return words(x[i] + k, v); }, [&](int j, int v) { return words(down + j * width + k, v); });
  }
  if (k < width) {
    T rest_of_x[ROWS][ITEMS] = {}, rest_of_down[RANKS][ITEMS] = {};
    for (int i = 0; i < ROWS; i++) memcpy(rest_of_x[i], x[i] + k, size_t(width - k) * sizeof(T));
    for (int j = 0; j < RANKS; j++) memcpy(rest_of_down[j], down + j * width + k, size_t(width - k) * sizeof(T));
    add([&](int i, int v) { return words(rest_of_x[i], v); }, [&](int j, int v) { return words(rest_of_down[j], v); });
  }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; i++) add_up(sums[i], inner[i]);
}

template <int ROWS, typename T>
void dot_rows(int64_t count, const T* const* x, const T* down, int64_t ranks, int64_t width, float* const* inner) {
  if constexpr (ROWS > 1) {
    if (count < ROWS) return dot_rows<ROWS - 1>(count, x, down, ranks, width, inner);
  }
  if (ranks == DOT_RANKS) return dot_tile<ROWS, DOT_RANKS>(x, down, width, inner);
  for (int64_t j = 0; j < ranks; j++) {
    float* at[ROWS];
    for (int i = 0; i < ROWS; i++) at[i] = inner[i] + j;
    dot_tile<ROWS, 1>(x, down + j * width, width, at);
  }
}

static inline Lanes load_lanes(const float* p) {
  Lanes v;
  memcpy(&v, p, sizeof(v));
  return v;
}

// VECTORS of columns of a row of U in the order in which their sums are kept.
template <int VECTORS>
static inline void load_columns(const float* p, Lanes (&u)[VECTORS]) {
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; v++) u[v] = load_lanes(p + v * LANES);
}

// Of each two vectors the even columns, then the odd ones, which takes one instruction each.
template <int VECTORS>
static inline void load_columns(const bf16* p, Lanes (&u)[VECTORS]) {
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; v += 2) {
    Words pairs;
    memcpy(&pairs, p + v * LANES, sizeof(pairs));
    u[v] = (Lanes)(pairs << 16);
    u[v + 1] = (Lanes)(pairs & 0xFFFF0000u);
  }
}

// A unit of sums, as they are kept, in the order of columns.
static inline void order_columns(const float* sums, const float*, float* ordered) {
  memcpy(ordered, sums, UNIT * sizeof(float));
}

static inline void order_columns(const float* sums, const bf16*, float* ordered) {
  for (int64_t i = 0; i < UNIT; i += 2 * LANES) {
    const Words even = (Words)load_lanes(sums + i), odd = (Words)load_lanes(sums + i + LANES);
    const Words first = pick(even, odd, [](int lane) constexpr { return lane / 2 + lane % 2 * LANES; });
    const Words last = pick(even, odd, [](int lane) constexpr { return (LANES + lane) / 2 + lane % 2 * LANES; });
    memcpy(ordered + i, &first, sizeof(first));
    memcpy(ordered + i + LANES, &last, sizeof(last));
  }
}

// Adds the products of some ranks to the sums of some rows and columns: VECTORS of columns, or the first `count` of a
// unit.
template <int ROWS, int VECTORS, typename T>
void sum_tile(const float* const* inner, Span ranks, const T* up, int64_t num_columns, int64_t count, float* sums) {
  Lanes all[ROWS][VECTORS] = {};
  if (ranks.begin > 0)
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) all[i][v] = load_lanes(sums + i * SUMS_STRIDE + v * LANES);
  for (int64_t rank = ranks.begin; rank < ranks.end; rank++) {
    const T* from = up + rank * num_columns;
    T part[UNIT];
    if (VECTORS == UNIT_VECTORS && count < UNIT) {
      std::fill(part, part + UNIT, T{});
      from = static_cast<const T*>(memcpy(part, from, size_t(count) * sizeof(T)));
    } else {
      constexpr int LINE_ITEMS = 64 / int(sizeof(T));
      for (int v = 0; v < VECTORS * LANES; v += LINE_ITEMS) __builtin_prefetch(from + VECTORS * LANES + v, 0, 3);
    }
    Lanes u[VECTORS];
    load_columns(from, u);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) all[i][v] = multiply_add(inner[i][rank] - Lanes{}, u[v], all[i][v]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) memcpy(sums + i * SUMS_STRIDE + v * LANES, &all[i][v], sizeof(Lanes));
}

template <typename T>
void add_to(T* y, const float* sums, int64_t width) {
  for (int64_t column = 0; column < width; column += UNIT) {
    float ordered[UNIT];
    order_columns(sums + column, y, ordered);
    for_each_part(std::min(UNIT, width - column), [&](int64_t start, int64_t count) {
      T* at = y + column + start;
      store_first(at, load_first(at, count) + load(ordered + start), count);
    });
  }
}

// Updates of some rows in a chunk of columns, a slice of ranks after the other.
template <int ROWS, typename T>
void update_rows(int64_t count, const float* const* inner, int64_t rank, const T* up, int64_t num_columns,
                 int64_t width, T* const* y) {
  if constexpr (ROWS > 1) {
    if (count < ROWS) return update_rows<ROWS - 1>(count, inner, rank, up, num_columns, width, y);
  }
  constexpr int VECTORS = vectors_at_once(ROWS);
  constexpr int64_t SLICE = slice_of(ROWS);
  alignas(64) float sums[ROWS][SUMS_STRIDE];
  for (int64_t first = 0; first < rank; first += SLICE) {
    const Span ranks{first, std::min(first + SLICE, rank)};
    int64_t column = 0;
    for (; column + VECTORS * LANES <= width; column += VECTORS * LANES)
      sum_tile<ROWS, VECTORS>(inner, ranks, up + column, num_columns, VECTORS * LANES, sums[0] + column);
    for (; column < width; column += UNIT)
      sum_tile<ROWS, UNIT_VECTORS>(inner, ranks, up + column, num_columns, width - column, sums[0] + column);
  }
  for (int i = 0; i < ROWS; i++) add_to(y[i], sums[i], width);
}

template <typename T>
class Update {
 public:
  Update(const LowRankArgs<T>& args, const Grouping& grouped, Work& work)
      : args_(args), grouped_(grouped), work_(work), num_sums_(args.num_parts * args.rank) {
    for (int64_t part = 0; part < args.num_parts; part++) num_columns_ += args.parts[part];
    // Long runs for few rows; for more, sums that stay in the first cache; and something for each thread to do.
    chunk_ = grouped.num_rows > 2 * grouped.num_blocks ? MAX_CHUNK / 2 : MAX_CHUNK;
    while (chunk_ > MIN_CHUNK && grouped.num_blocks * num_columns_ < 2 * work.num_threads() * chunk_) chunk_ /= 2;
    inner_ = static_cast<float*>(work.shared(size_t(grouped.num_rows * num_sums_) * sizeof(float)));
  }

  void multiply_down() {
    const int64_t num_tiles = (num_sums_ + DOT_RANKS - 1) / DOT_RANKS;
    const int64_t bytes = DOT_RANKS * args_.width * int64_t(sizeof(T));
    for_each(num_tiles, bytes, [&](const Grouping::Block& block, int64_t tile) {
      const int64_t first = tile * DOT_RANKS, ranks = std::min<int64_t>(DOT_RANKS, num_sums_ - first);
      const T* down = args_.down + (block.adapter * num_sums_ + first) * args_.width;
      for (int64_t begin = 0; begin < block.count; begin += DOT_ROWS) {
        const int64_t count = std::min<int64_t>(DOT_ROWS, block.count - begin);
        const T* x[DOT_ROWS];
        float* inner[DOT_ROWS];
        for (int64_t i = 0; i < count; i++) {
          x[i] = args_.x + grouped_.rows[block.first + begin + i] * args_.stride;
          inner[i] = inner_ + (block.first + begin + i) * num_sums_ + first;
        }
        dot_rows<DOT_ROWS>(count, x, down, ranks, args_.width, inner);
      }
    });
  }

  void multiply_up() {
    const int64_t bytes = chunk_ * args_.rank * int64_t(sizeof(T));
    int64_t num_chunks = 0;
    for (int64_t part = 0; part < args_.num_parts; part++) num_chunks += chunks_of(part);
    for_each(num_chunks, bytes, [&](const Grouping::Block& block, int64_t chunk) {
      int64_t part = 0, start = 0;
      for (; chunk >= chunks_of(part); part++) {
        chunk -= chunks_of(part);
        start += args_.parts[part];
      }
      const int64_t begin = chunk * chunk_;
      const Span columns{start + begin, start + std::min(begin + chunk_, args_.parts[part])};
      const T* up = args_.up + block.adapter * args_.rank * num_columns_ + columns.begin;
      for (int64_t from = 0; from < block.count; from += ADD_ROWS) {
        const int64_t count = std::min<int64_t>(ADD_ROWS, block.count - from);
        const float* inner[ADD_ROWS];
        T* y[ADD_ROWS];
        for (int64_t i = 0; i < count; i++) {
          inner[i] = inner_ + (block.first + from + i) * num_sums_ + part * args_.rank;
          y[i] = args_.y + grouped_.rows[block.first + from + i] * num_columns_ + columns.begin;
        }
        update_rows<ADD_ROWS>(count, inner, args_.rank, up, num_columns_, columns.end - columns.begin, y);
      }
    });
  }

 private:
  int64_t chunks_of(int64_t part) const { return (args_.parts[part] + chunk_ - 1) / chunk_; }

  // Calls compute(block, part of its work) for all of them; a part reads so many bytes of a matrix.
  template <typename Compute>
  void for_each(int64_t parts_of_block, int64_t bytes, const Compute& compute) {
    const int64_t num_items = grouped_.num_blocks * parts_of_block;
    const int64_t rows = std::min(BLOCK_ROWS, grouped_.num_rows);
    const int64_t item_ns = bytes * std::max<int64_t>(1, rows / 2) / 16;
    Span items;
    while (work_.take(num_items, short_grain_of(num_items, work_, item_ns), items))
      for (int64_t item = items.begin; item < items.end; item++)
        compute(grouped_.blocks[item / parts_of_block], item % parts_of_block);
  }

  const LowRankArgs<T>& args_;
  const Grouping& grouped_;
  Work& work_;
  int64_t num_sums_;  // of a row: P R
  int64_t num_columns_ = 0;
  int64_t chunk_;
  float* inner_;  // [rows with an adapter][P][R]
};

template <typename T>
void add_low_rank(const LowRankArgs<T>& args, const Pass& pass, Work& work) {
  const Grouping grouped(args.numbers, row_count(args, pass), args.num_adapters, work);
  if (grouped.num_rows == 0) return;
  Update<T> update(args, grouped, work);
  update.multiply_down();
  work.barrier();
  update.multiply_up();
}

}  // namespace

OPERATOR(add_low_rank_f32, LowRankArgs<float>) { add_low_rank(args, pass, work); }
OPERATOR(add_low_rank_bf16, LowRankArgs<bf16>) { add_low_rank(args, pass, work); }
