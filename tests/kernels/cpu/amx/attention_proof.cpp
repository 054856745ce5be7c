// Attention's products for few rows, by vectors in the order of matrix tiles, held to those for many, by tiles.
//
// Of all pairs of edge values for a query and a key at two places of a chain of products, behind a sum that is any of
// them; likewise of weights and values. Then of random bits, for all numbers of rows. Exits with 0, or 1 and what
// differs.
#include <cstdio>
#include <cstring>
#include <vector>

#include "attention_bytes.h"
#include "attention_products.h"
#include "attention_tiles.h"
#include "operator.h"

extern "C" int baton_use_tiles(int wanted);

namespace {

constexpr bf16 EDGES[] = {0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x8081, 0x1F80, 0x9FFF, 0x2000, 0xA001, 0x3F80,
                          0xBF81, 0x5F80, 0xDF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0};
constexpr int64_t NUM_EDGES = sizeof EDGES / sizeof EDGES[0];
constexpr int64_t MOST_ROWS = 40, CELLS = 48, WIDTH = 64;

uint64_t state = 1;

uint32_t random_bits() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(state >> 33);
}

bf16 edge(int64_t number) { return EDGES[number % NUM_EDGES]; }
bf16 any_item(bool is_edge) { return is_edge ? edge(random_bits()) : bf16(random_bits()); }

struct Proof {
  int64_t num_sums = 0, num_wrong = 0;

  // There is one zero: what a row sees adds nothing but zeros of either sign behind its last key.
  void compare(const char* what, const float* few, const float* many, int64_t count) {
    for (int64_t i = 0; i < count; i++, num_sums++) {
      const bool both_nan = few[i] != few[i] && many[i] != many[i];
      if (both_nan || few[i] == many[i]) continue;
      if (num_wrong++ < 10) printf("%s %ld: %a is not %a\n", what, long(i), double(few[i]), double(many[i]));
    }
  }

  void check_scores(int64_t rows, const std::vector<bf16>& queries, const std::vector<bf16>& keys) {
    const uint8_t* key_rows[CHUNK];
    for (int64_t key = 0; key < CHUNK; key++)
      key_rows[key] = reinterpret_cast<const uint8_t*>(keys.data() + key * CELLS * 2);
    std::vector<Cell> query_cells(size_t(MOST_ROWS * CELLS)), packed(size_t(CELLS * CHUNK));
    memcpy(query_cells.data(), queries.data(), query_cells.size() * sizeof(Cell));
    for (int64_t key = 0; key < CHUNK; key += 16) pack_keys(key_rows + key, CELLS, packed.data() + key, CHUNK);
    std::vector<float> few(size_t(MOST_ROWS * CHUNK)), many(few);
    Upcoming nothing;
    for (int64_t row = 0; row < rows; row += FEW_ROWS)
      score_few<bf16>(std::min(FEW_ROWS, rows - row), {query_cells.data() + row * CELLS, CELLS}, key_rows, CELLS,
                      {few.data() + row * CHUNK, CHUNK}, nothing);
    multiply<bf16, Rowwise::QUERIES>(rows, query_cells.data(), QUERY_GROUP * CELLS, {packed.data(), CHUNK}, CELLS,
                                     CHUNK, nullptr, {many.data(), CHUNK});
    release_tiles();
    compare("score", few.data(), many.data(), rows * CHUNK);
  }

  void check_mixes(int64_t rows, int64_t keys, const std::vector<bf16>& weights, const std::vector<bf16>& values,
                   const std::vector<float>& before) {
    const std::vector<bf16> zeros(size_t(WIDTH), bf16(0));
    const uint8_t* value_rows[CHUNK];
    for (int64_t key = 0; key < CHUNK; key++)
      value_rows[key] = reinterpret_cast<const uint8_t*>(key < keys ? values.data() + key * WIDTH : zeros.data());
    const Cell* weight_cells = reinterpret_cast<const Cell*>(weights.data());
    std::vector<Cell> packed(size_t(CHUNK / 2 * WIDTH));
    for (int64_t key = 0; key < CHUNK; key += 2)
      pack_values<bf16>(value_rows + key, WIDTH, packed.data() + key / 2 * WIDTH);
    std::vector<float> few(before), many(before), factors(size_t(MOST_ROWS), 0.75f);
    Upcoming nothing;
    for (int64_t row = 0; row < rows; row += FEW_ROWS)
      mix_few<bf16>(std::min(FEW_ROWS, rows - row), weight_cells + row * CHUNK / 2, value_rows, (keys + 1) / 2, WIDTH,
                    factors.data(), {few.data() + row * WIDTH, WIDTH}, nothing);
    multiply<bf16, Rowwise::WEIGHTS>(rows, weight_cells, QUERY_GROUP * CHUNK / 2, {packed.data(), WIDTH},
                                     (keys + 1) / 2, WIDTH, factors.data(), {many.data(), WIDTH});
    release_tiles();
    compare("mix", few.data(), many.data(), rows * WIDTH);
  }

  // a b + c d of all edges, in even items or in odd ones, whose others are all of one pair.
  void check_edges(int64_t parity) {
    constexpr int64_t PAIRS = NUM_EDGES * NUM_EDGES;
    for (int64_t first = 0; first < PAIRS; first += FEW_ROWS)
      for (int64_t other = 0; other < PAIRS; other += CHUNK) {
        std::vector<bf16> queries(size_t(MOST_ROWS * CELLS * 2)), keys(size_t(CHUNK * CELLS * 2));
        std::vector<bf16> weights(size_t(MOST_ROWS * CHUNK)), values(size_t(CHUNK * WIDTH));
        std::vector<float> before(size_t(MOST_ROWS * WIDTH));
        const int64_t place = parity, next = parity + 2 + random_bits() % 14 * 2;
        for (int64_t row = 0; row < FEW_ROWS; row++) {
          const bf16 a = edge((first + row) / NUM_EDGES), c = edge(first + row), carried = edge(first + row + other);
          bf16* query = queries.data() + row * CELLS * 2;
          query[place] = a, query[next] = c, query[32 + parity] = carried, query[1 - parity] = carried;
          bf16* weight = weights.data() + row * CHUNK;
          weight[place] = a, weight[next] = c, weight[1 - parity] = carried;
          for (int64_t i = 0; i < WIDTH; i++) before[size_t(row * WIDTH + i)] = to_float(edge(row + i + first));
        }
        for (int64_t i = 0; i < CHUNK; i++) {
          const bf16 b = edge((other + i) / NUM_EDGES), d = edge(other + i);
          bf16* key = keys.data() + i * CELLS * 2;
          key[place] = b, key[next] = d, key[32 + parity] = 0x3F80, key[1 - parity] = edge(first + i);
          values[size_t(place * WIDTH + i)] = b, values[size_t(next * WIDTH + i)] = d;
          values[size_t((1 - parity) * WIDTH + i)] = edge(first + i);
        }
        check_scores(FEW_ROWS, queries, keys);
        check_mixes(FEW_ROWS, CHUNK, weights, values, before);
      }
  }

  void check_random(bool is_edge) {
    for (int64_t rows = 1; rows <= MOST_ROWS; rows++) {
      std::vector<bf16> queries(size_t(MOST_ROWS * CELLS * 2)), keys(size_t(CHUNK * CELLS * 2));
      std::vector<bf16> weights(size_t(MOST_ROWS * CHUNK)), values(size_t(CHUNK * WIDTH));
      std::vector<float> before(size_t(MOST_ROWS * WIDTH));
      for (auto* items : {&queries, &keys, &weights, &values})
        for (bf16& item : *items)  // numbers, most of them of like size, or what is asked for in one of 16
          item = random_bits() % 16 ? bf16((random_bits() & 0x8000) | (0x3D00 + random_bits() % 0x300)) : any_item(is_edge);
      for (float& sum : before) sum = to_float(bf16(random_bits() & 0xBFFF));
      check_scores(rows, queries, keys);
      const int64_t seen = 1 + random_bits() % CHUNK;
      for (int64_t row = 0; row < MOST_ROWS; row++)
        for (int64_t key = seen; key < CHUNK; key++) weights[size_t(row * CHUNK + key)] = 0;
      check_mixes(rows, seen, weights, values, before);
    }
  }
};

int prove(bool is_emulated) {
  const int answer = baton_use_tiles(int(is_emulated ? Tiles::EMULATED : Tiles::AMX));
  printf("baton_use_tiles: %d\n", answer);
  if (answer != 0) return 1;
  Proof proof;
  proof.check_edges(0);
  proof.check_edges(1);
  for (int turn = 0; turn < 10; turn++) proof.check_random(turn % 2);
  printf("%ld sums, %ld wrong\n", long(proof.num_sums), long(proof.num_wrong));
  return proof.num_wrong != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int failed = prove(argc > 1 && strcmp(argv[1], "emulated") == 0);
  printf("PROOF %s\n", failed ? "FAILED" : "HOLDS");
  return failed;
}
