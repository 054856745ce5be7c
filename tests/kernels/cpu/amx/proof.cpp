// The products by matrix tiles, held to their emulation on the CPU at hand: the real one, or an emulator's.
//
// Prints how many sums were compared and a checksum of them, which must be the same on any machine; without
// tiles (`proof emulated`) it is that of the emulation alone. Exits with 0, or 1 and what differs.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "linear_tile.h"

extern "C" int baton_use_tiles(int wanted);

namespace {


uint64_t state = 1;

uint32_t random_bits() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(state >> 33);
}

enum Kind { PLAIN, TINY, EDGES, ANY_BITS, NUM_KINDS };

bf16 item(Kind kind) {
  const uint32_t bits = random_bits();
  const bf16 sign = bf16(bits >> 16 & 0x8000);
  static const bf16 edges[] = {0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0, 0x1F80, 0x2000};
  switch (kind) {
    case PLAIN: return bf16(sign | (0x3D00 + (bits & 0x03FF)));
    case TINY: return bf16(sign | (0x1E00 + (bits & 0x02FF)));  // products around the least normal number
    case EDGES: return bf16(sign | edges[bits % 10]);
    default: return bf16(bits);
  }
}

struct Found {
  std::vector<float> bf16_sums;
  std::vector<int32_t> int8_sums;
};

Found multiply(int64_t rows, const std::vector<bf16>& x, int64_t stride, const std::vector<bf16>& panel,
               int64_t num_steps) {
  Found found{std::vector<float>(size_t(rows * PANEL)), std::vector<int32_t>(size_t(rows * PANEL))};
  for (int64_t row = 0; row < rows; row += AMX_ROWS) {
    const int64_t count = std::min(rows - row, AMX_ROWS);
    const char* weights = reinterpret_cast<const char*>(panel.data());
    multiply_rows(count, x.data() + row * stride, stride, panel.data(), num_steps, Prefetch<1>{weights, 64},
                  found.bf16_sums.data() + row * PANEL);
    multiply_int8_by_tiles(count, {x.data() + row * stride, stride * 2, weights, num_steps}, {weights, 128},
                           found.int8_sums.data() + row * PANEL);
  }
  release_tiles();
  return found;
}

bool is_same(float a, float b) { return (a != a && b != b) || memcmp(&a, &b, 4) == 0; }

struct Proof {
  Tiles by;
  int64_t num_sums = 0, num_wrong = 0;
  uint64_t checksum = 14695981039346656037u;

  void add(uint32_t word) { checksum = (checksum ^ word) * 1099511628211u; }

  void check(Kind kind, int64_t rows, int64_t num_steps) {
    const int64_t stride = num_steps * 2 + 6;
    std::vector<bf16> x(size_t(rows * stride)), panel(size_t(num_steps * PANEL * 2));
    for (bf16& each : x) each = item(kind);
    for (bf16& each : panel) each = item(kind);
    tiles_in_use = Tiles::EMULATED;
    const Found expected = multiply(rows, x, stride, panel, num_steps);
    tiles_in_use = by;
    const Found found = multiply(rows, x, stride, panel, num_steps);
    tiles_in_use = Tiles::NONE;
    for (size_t i = 0; i < found.bf16_sums.size(); i++) {
      const float sum = found.bf16_sums[i];
      uint32_t bits;
      memcpy(&bits, &sum, 4);
      add(sum != sum ? 0x7FC00000u : bits);
      add(uint32_t(found.int8_sums[i]));
      num_sums += 2;
      if (is_same(sum, expected.bf16_sums[i]) && found.int8_sums[i] == expected.int8_sums[i]) continue;
      if (num_wrong++ < 10)
        printf("kind %d rows %ld steps %ld at %zu: %a is not %a, %d is not %d\n", kind, long(rows),
               long(num_steps), i, double(sum), double(expected.bf16_sums[i]), found.int8_sums[i],
               expected.int8_sums[i]);
    }
  }
};

int prove(bool is_emulated) {
  const int answer = baton_use_tiles(int(is_emulated ? Tiles::EMULATED : Tiles::AMX));
  printf("baton_use_tiles: %d\n", answer);
  if (answer != 0) return 1;
  Proof proof{is_emulated ? Tiles::EMULATED : Tiles::AMX};
  for (int kind = 0; kind < NUM_KINDS; kind++) {
    for (int64_t rows = 1; rows <= 65; rows++) proof.check(Kind(kind), rows, 1 + rows % 40);
    for (int64_t num_steps : {1, 7, 15, 16, 17, 31, 32, 33, 160})
      for (int64_t rows : {1, 16, 17, 32}) proof.check(Kind(kind), rows, num_steps);
  }
  std::thread([&] { proof.check(PLAIN, 33, 50); }).join();  // a thread that comes later has tiles of its own
  printf("%ld sums, %ld wrong, checksum %016lx\n", long(proof.num_sums), long(proof.num_wrong),
         (unsigned long)proof.checksum);
  return proof.num_wrong != 0;
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const int failed = prove(argc > 1 && strcmp(argv[1], "emulated") == 0);
  printf("PROOF %s\n", failed ? "FAILED" : "HOLDS");
  return failed;
}
