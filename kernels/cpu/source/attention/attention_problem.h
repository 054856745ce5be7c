// The inputs of attention of any kind: the pass, the widths of rows, and where they are.
//
//   KvProblem         separate keys and values               attention_kv.h
//   LatentProblem     one row that is key and value at once  attention_latents.h
//
// Chunks and segments of keys begin at multiples of their lengths, whatever the tile: see attending.h.
#pragma once

#include <algorithm>
#include <bit>

#include "attention_bytes.h"
#include "attention_products.h"
#include "attention_softmax.h"
#include "operator.h"
#include "upcoming.h"

namespace {

constexpr int64_t SEGMENT = 512;
constexpr int64_t BAND_ROWS = 8;  // that end together; see each_band
constexpr int64_t L1_ROWS = 32;   // whose scores stay in a core's first cache until they are weighed

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Keys as stored in the cache or, if that is quantized, the unquantized keys of the query's own block: see
// attention_int4.h.
enum class Rows { CACHED, OPEN };

// Scales of the rows of a chunk; those of keys are multiplied by the factor of scores. 0 where there is no row.
struct RowScales {
  float keys[CHUNK], values[CHUNK];
};

struct Tile;

template <typename T>
struct AttentionProblem {
  static constexpr bool HAS_OPEN = false;

  T* out;  // [T][N][value width]
  const int64_t *query_starts, *context_lens, *block_tables;
  int64_t num_requests, table_stride, block_size;
  int64_t num_heads, num_kv_heads, key_width, value_width;
  int64_t window;  // the keys that a query sees, itself among them; -n: those of its chunk of n
  Scoring scoring;
  int64_t num_first = 0;  // keys at the beginning that are seen by all queries behind them, too
  Items items = Items::WIDE;  // of rows; if in 8 bits, they have scales and are multiplied without

  int64_t group() const { return num_heads / num_kv_heads; }
  bool has_scales() const { return items != Items::WIDE; }
  bool is_bytes() const { return MULTIPLIES_BYTES<T> && has_scales(); }  // what `find_rows` finds
  int64_t few_rows() const { return is_bytes() ? FEW_BYTE_ROWS : FEW_ROWS; }
  bool has_shuffled_keys() const { return sizeof(T) == 2 && has_scales(); }
  int64_t padded_key() const { return round_up(key_width, column_group()); }
  int64_t padded_value() const { return round_up(value_width, column_group()); }
  int64_t column_group() const { return is_bytes() ? BYTE_COLUMNS : 16 * PER_CELL<T>; }
  int64_t depth() const {  // cells of a key
    return round_up(key_width, has_shuffled_keys() ? SHUFFLED_ITEMS : PER_CELL<T>) / PER_CELL<T>;
  }
  int64_t padded_depth() const { return padded_key() / PER_CELL<T>; }

  // A query that can be used in place, or null.
  const T* find_query(int64_t, int64_t) const { return nullptr; }

  // Whether rows of several KV heads are read one after the other; see attention_kv.h.
  bool is_read_in_place() const { return false; }
  void find_rows_of_next_head(int64_t, const uint8_t**, const uint8_t**) const {}

  // Where rows have scales.
  void find_scales(const Tile&, int64_t, int64_t, RowScales&) const {}

  // The position of the first key that a query at `position` sees.
  int64_t first_seen(int64_t position) const {
    return window < 0 ? position - position % -window : std::max<int64_t>(0, position - window + 1);
  }

  // What it sees of the keys from position `first` on.
  Visible visible(int64_t position, int64_t first, Rows) const {
    const int64_t end = std::min(CHUNK, position + 1 - first);
    return {std::max<int64_t>(0, first_seen(position) - first), end, 0, std::min(num_first - first, end)};
  }

  // The first CHUNK from `chunk` on in which it or any behind it sees a key.
  int64_t next_chunk(int64_t position, int64_t chunk) const {
    return chunk < num_first ? chunk : std::max(chunk, first_seen(position) / CHUNK * CHUNK);
  }
  int64_t first_chunk(int64_t position) const { return next_chunk(position, 0); }
};

// Some rows of one request on one KV head.
struct Tile {
  const int64_t* table;
  int64_t kv_head, group;
  int64_t first_token;  // of the request, among those of the pass
  int64_t past;         // tokens of the request before that
  int64_t begin, end;   // rows: token * group + head

  int64_t rows() const { return end - begin; }
  int64_t token(int64_t row) const { return (begin + row) / group; }
  int64_t position(int64_t row) const { return past + token(row); }
  int64_t head(int64_t row) const { return kv_head * group + (begin + row) % group; }
  int64_t last_position() const { return position(rows() - 1); }
};

}  // namespace
