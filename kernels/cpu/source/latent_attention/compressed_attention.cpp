// Attention to recent tokens and to compressed entries; see kernels/latent_attention/compressed_attention.py.
#include <algorithm>
#include <cmath>
#include <limits>

#include "functions.h"
#include "operator.h"
#include "rows.h"
#include "token_slots.h"

namespace {

constexpr int64_t HEADS_AT_ONCE = 8, KEYS_AT_ONCE = 2;
constexpr float LEAST = -std::numeric_limits<float>::infinity();

// Entries of a request; each is in the row of the token that closed its window.
template <typename T>
struct Entries {
  const T* arena;
  int64_t size, row_width, offset;

  const T* at(const TokenSlots& slots, int64_t request, int64_t entry) const {
    return arena + slots.slot(request, (entry + 1) * size - 1) * row_width + offset;
  }
};

int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }

// Number of tiles of heads; the last one is padded.
int64_t tiles_of(int64_t heads) { return (heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE; }

// Converts x [heads][width], whose rows are `step` apart, to floats in whole tiles, padded with 0.
template <typename T>
void widen(const T* x, int64_t heads, int64_t width, int64_t step, float* y) {
  for (int64_t head = 0; head < tiles_of(heads) * HEADS_AT_ONCE; head++)
    for (int64_t d = 0; d < step; d += 16) {
      const int64_t count = head < heads ? std::min<int64_t>(width - d, 16) : 0;
      store(y + head * step + d, load_first(x + head * width + d, count));
    }
}

// Adds one half of each group of `SIZE` to the other half, for a and then b: 32 numbers become 16.
template <int SIZE>
f32x16 add_halves(f32x16 a, f32x16 b) {
  if constexpr (SIZE == 16)
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  else if constexpr (SIZE == 8)
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  else if constexpr (SIZE == 4)
    return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  else
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// The sums of 16 vectors, each in the order of `sum`: halves, and halves of halves.
template <int SIZE = 16>
f32x16 sums_of(const f32x16* v) {
  if constexpr (SIZE == 1) {
    return v[0];
  } else {
    f32x16 halves[SIZE / 2];
    for (int i = 0; i < SIZE / 2; i++) halves[i] = add_halves<SIZE>(v[2 * i], v[2 * i + 1]);
    return sums_of<SIZE / 2>(halves);
  }
}

// keys[k] . q[h] -> y[k][h] for the heads of a tile; the order of each sum is fixed.
template <int64_t NUM_KEYS, typename T>
void products(const float* q, int64_t width, int64_t step, const T* const* keys, float* y) {
  f32x16 sums[KEYS_AT_ONCE][HEADS_AT_ONCE] = {};
  for_each_part(width, [&](int64_t d, int64_t count) {
    f32x16 v[NUM_KEYS];
    for (int64_t k = 0; k < NUM_KEYS; k++) v[k] = load_first(keys[k] + d, count);
    for (int64_t h = 0; h < HEADS_AT_ONCE; h++) {
      const f32x16 asked = load(q + h * step + d);
      for (int64_t k = 0; k < NUM_KEYS; k++) sums[k][h] = fma(v[k], asked, sums[k][h]);
    }
  });
  static_assert(KEYS_AT_ONCE * HEADS_AT_ONCE == 16);
  store(y, sums_of(&sums[0][0]));
}

// Calls finish(key, its products) for each of `count` keys.
template <typename T, typename Finish>
void all_products(const float* q, int64_t width, int64_t step, const T* const* keys, int64_t count,
                  Finish finish) {
  float found[KEYS_AT_ONCE * HEADS_AT_ONCE];
  int64_t k = 0;
  for (; k + KEYS_AT_ONCE <= count; k += KEYS_AT_ONCE) {
    products<KEYS_AT_ONCE>(q, width, step, keys + k, found);
    for (int64_t i = 0; i < KEYS_AT_ONCE; i++) finish(k + i, found + i * HEADS_AT_ONCE);
  }
  for (; k < count; k++) {
    products<1>(q, width, step, keys + k, found);
    finish(k, found);
  }
}

template <typename T>
struct ChooseEntriesArgs : Args {
  FIELDS(Args,
         const T* q;                   // [rows][N][D]
         const T* weights;             // [rows][N]
         const T* arena;               // of the index's entries
         const int64_t* positions;     // [rows]
         const int64_t* query_starts;  // [R + 1]
         const int64_t* block_tables;  // [R][table_stride]
         int32_t* chosen;              // [rows][1 + top_k] how many entries a token sees, and which, ascending
         int64_t num_heads;            // N
         int64_t width;                // D
         int64_t window_tokens;        // of an entry
         int64_t row_width;            // items of a row of the arena
         int64_t entry_start;          // offset in it
         int64_t block_size;           // S
         int64_t table_stride;
         int64_t top_k;
         double scale;)                // of the weights
};

template <typename T>
void choose(const ChooseEntriesArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t heads = args.num_heads, width = args.width, top_k = args.top_k, step = padded(width);
  const TokenSlots slots = slots_of(args);
  const Entries<T> entries{args.arena, args.window_tokens, args.row_width, args.entry_start};
  int64_t most = 0, request = 0;
  for (int64_t token = 0; token < row_count(args, pass); token++)
    most = std::max(most, (slots.positions[token] + 1) / entries.size);
  const int64_t room = padded(most), q_items = tiles_of(heads) * HEADS_AT_ONCE * step;
  char* scratch = static_cast<char*>(work.scratch(
      size_t(room) * (sizeof(void*) + sizeof(float) + sizeof(int32_t)) + size_t(q_items) * sizeof(float)));
  const T** keys = reinterpret_cast<const T**>(scratch);
  float* scores = reinterpret_cast<float*>(keys + room);
  int32_t* order = reinterpret_cast<int32_t*>(scores + room);
  float* q = reinterpret_cast<float*>(order + room);
  Span span;
  while (work.take(row_count(args, pass), 1, span))
    for (int64_t token = span.begin; token < span.end; token++) {
      request = slots.request_of(token, request);
      const int64_t count = (slots.positions[token] + 1) / entries.size;
      int32_t* chosen = args.chosen + token * (1 + top_k);
      *chosen++ = int32_t(std::min(count, top_k));
      for (int64_t e = 0; e < count; e++) order[e] = int32_t(e);
      if (count > top_k) {
        widen(args.q + token * heads * width, heads, width, step, q);
        const T* weights = args.weights + token * heads;
        for (int64_t e = 0; e < count; e++) {
          keys[e] = entries.at(slots, request, e);
          scores[e] = 0;
        }
        for (int64_t head = 0; head < heads; head += HEADS_AT_ONCE)
          all_products(q + head * step, width, step, keys, count, [&](int64_t e, const float* found) {
            for (int64_t h = 0; h < std::min(heads - head, HEADS_AT_ONCE); h++)
              if (found[h] > 0)
                scores[e] += found[h] * (to_float(weights[head + h]) * float(args.scale));
          });
        for (int64_t e = 0; e < count; e++)  // what is ranked must have an order
          if (scores[e] != scores[e]) scores[e] = LEAST;
        std::nth_element(order, order + top_k, order + count, [&](int32_t a, int32_t b) {
          return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
        });
        std::sort(order, order + top_k);
      }
      std::copy(order, order + std::min(count, top_k), chosen);
    }
}

// The keys that one token sees, in order.
template <typename T>
struct Seen {
  const T** keys;
  int64_t count;
};

template <typename T>
struct Attending {
  TokenSlots slots;
  const T* arena;
  Entries<T> entries;  // whose arena may be null
  const int32_t* chosen;  // [rows][stride], or null: all
  int64_t chosen_stride, window, width;

  int64_t most_seen(int64_t position) const {
    const int64_t recent = std::min(window, position + 1);
    if (!entries.arena) return recent;
    return recent + (chosen ? chosen_stride - 1 : (position + 1) / entries.size);
  }

  Seen<T> seen(int64_t token, int64_t request, const T** keys) const {
    const int64_t position = slots.positions[token];
    int64_t count = 0;
    for (int64_t p = std::max<int64_t>(0, position - window + 1); p <= position; p++)
      keys[count++] = arena + slots.slot(request, p) * width;
    if (!entries.arena) return {keys, count};
    const int32_t* own = chosen ? chosen + token * chosen_stride : nullptr;
    const int64_t num_entries = own ? own[0] : (position + 1) / entries.size;
    for (int64_t e = 0; e < num_entries; e++)
      keys[count++] = entries.at(slots, request, own ? own[1 + e] : e);
    return {keys, count};
  }
};

// Converts the scores of all keys to weights; the weight of the sink is dropped.
void softmax(float* scores, int64_t count, float sink) {
  float most = sink;
  for (int64_t k = 0; k < count; k++) most = scores[k] > most ? scores[k] : most;
  f32x16 total{};
  for_each_part(count, [&](int64_t k, int64_t part) {
    const f32x16 share = keep_first(exp(load_first(scores + k, part) - most), part);
    store_first(scores + k, share, part);
    total += share;
  });
  const float inverse = 1.0f / (sum(total) + exp(splat(sink - most))[0]);
  for (int64_t k = 0; k < count; k++) scores[k] *= inverse;
}

// The weighted sums over all keys of a few parts of the vectors, from item d on, for the `some` heads of a tile.
template <int64_t NUM_PARTS, typename T>
void mean(const Seen<T>& seen, const float* weights, int64_t room, int64_t d, int64_t count, T* out,
          int64_t some, int64_t width) {
  f32x16 sums[NUM_PARTS][HEADS_AT_ONCE] = {};
  for (int64_t k = 0; k < seen.count; k++) {
    f32x16 v[NUM_PARTS];
    for (int64_t part = 0; part < NUM_PARTS; part++)
      v[part] = load_first(seen.keys[k] + d + 16 * part, count);
    for (int64_t h = 0; h < HEADS_AT_ONCE; h++) {
      const f32x16 weight = splat(weights[h * room + k]);
      for (int64_t part = 0; part < NUM_PARTS; part++) sums[part][h] = fma(weight, v[part], sums[part][h]);
    }
  }
  for (int64_t h = 0; h < some; h++)
    for (int64_t part = 0; part < NUM_PARTS; part++)
      store_first(out + h * width + 16 * part, sums[part][h], count);
}

template <typename T>
struct CompressedArgs : Args {
  FIELDS(Args,
         const T* q;                   // [rows][N][H]
         const T* arena;               // of the window
         const int64_t* positions;     // [rows]
         const int64_t* query_starts;  // [R + 1]
         const int64_t* block_tables;  // [R][table_stride]
         const T* sinks;               // [N]
         const T* entries;             // their arena, or null
         const int32_t* chosen;        // [rows][chosen_stride] or null: all entries
         T* out;                       // as q
         int64_t num_heads;            // N
         int64_t width;                // H
         int64_t window;
         int64_t block_size;           // S
         int64_t table_stride;
         int64_t window_tokens;        // of an entry
         int64_t row_width;            // items of a row of the entries' arena
         int64_t entry_start;          // offset in it
         int64_t chosen_stride;
         double scale;)
};

template <typename T>
void attend(const CompressedArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t heads = args.num_heads, width = args.width, step = padded(width);
  const Attending<T> attending{
      slots_of(args),
      args.arena,
      {args.entries, args.window_tokens, args.row_width, args.entry_start},
      args.chosen,
      args.chosen_stride,
      args.window,
      width};
  const int64_t num_tokens = row_count(args, pass);
  const int64_t tiles = tiles_of(heads);
  int64_t most = 0, request = 0;
  for (int64_t token = 0; token < num_tokens; token++)
    most = std::max(most, attending.most_seen(attending.slots.positions[token]));
  const int64_t room = padded(most);
  char* scratch = static_cast<char*>(work.scratch(
      size_t(HEADS_AT_ONCE * (step + room)) * sizeof(float) + size_t(room) * sizeof(void*)));
  const T** keys = reinterpret_cast<const T**>(scratch);
  float* q = reinterpret_cast<float*>(scratch + size_t(room) * sizeof(void*));
  float* scores = q + HEADS_AT_ONCE * step;
  const T* sinks = args.sinks;
  Span span;
  while (work.take(num_tokens * tiles, 1, span))
    for (int64_t item = span.begin; item < span.end; item++) {
      const int64_t token = item / tiles, first = item % tiles * HEADS_AT_ONCE;
      const int64_t some = std::min(heads - first, HEADS_AT_ONCE);
      request = attending.slots.request_of(token, request);
      const Seen<T> seen = attending.seen(token, request, keys);
      const int64_t place = (token * heads + first) * width;
      widen(args.q + place, some, width, step, q);
      all_products(q, width, step, seen.keys, seen.count, [&](int64_t k, const float* found) {
        for (int64_t h = 0; h < HEADS_AT_ONCE; h++) scores[h * room + k] = found[h] * float(args.scale);
      });
      for (int64_t h = 0; h < HEADS_AT_ONCE; h++)
        softmax(scores + h * room, seen.count, h < some ? to_float(sinks[first + h]) : 0);
      T* out = args.out + place;
      int64_t d = 0;
      for (; d + 32 <= width; d += 32) mean<2>(seen, scores, room, d, 16, out + d, some, width);
      for (; d < width; d += 16)
        mean<1>(seen, scores, room, d, std::min<int64_t>(width - d, 16), out + d, some, width);
    }
}

}  // namespace

OPERATOR(choose_entries_f32, ChooseEntriesArgs<float>) { choose<float>(args, pass, work); }
OPERATOR(choose_entries_bf16, ChooseEntriesArgs<bf16>) { choose<bf16>(args, pass, work); }
OPERATOR(compressed_attention_f32, CompressedArgs<float>) { attend<float>(args, pass, work); }
OPERATOR(compressed_attention_bf16, CompressedArgs<bf16>) { attend<bf16>(args, pass, work); }
