// Decides whether this process multiplies by matrix tiles: if it is asked to, the CPU has them, the operating system
// permits them, and they compute what they are defined to.
#include "amx_product.h"

#if HAS_AMX
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace {

constexpr long ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr unsigned long XTILE_DATA = 18;
constexpr uint64_t XTILE_STATE = uint64_t(3) << 17;

bool has_instructions() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned BF16 = 1u << 22, TILE = 1u << 24, INT8 = 1u << 25;
  if ((d & (BF16 | TILE | INT8)) != (BF16 | TILE | INT8)) return false;
  unsigned low, high;  // of XCR0: what the system keeps for threads
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & XTILE_STATE) == XTILE_STATE;
}

// Permission for all threads of the process, also future ones. The kernel refuses it if a signal stack is too small,
// for example.
bool is_permitted() { return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA) == 0; }

// Test values for rounding: of many magnitudes, some infinite or NaN, some denormal.
uint16_t some_bf16(uint32_t number) {
  static constexpr uint16_t EDGES[] = {0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F};
  number = number * 2654435761u ^ number >> 15;
  number = number * 2246822519u ^ number >> 13;
  if (number % 4096 < 9) return EDGES[number % 4096];
  return uint16_t((number & 0x8000) | (0x3C00 + (number >> 16 & 0x07FF)));
}

bool is_same(const float* found, const float* expected, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const bool both_nan = found[i] != found[i] && expected[i] != expected[i];
    if (!both_nan && memcmp(found + i, expected + i, 4) != 0) return false;
  }
  return true;
}

struct Products {
  std::vector<float> bf16;
  std::vector<int32_t> int8;
};

Products products(Tiles by, int64_t rows, int64_t num_steps, uint32_t seed) {
  std::vector<uint16_t> x(size_t(rows * num_steps * 2)), panel(size_t(num_steps * 64));
  for (size_t i = 0; i < x.size(); i++) x[i] = some_bf16(seed + uint32_t(i));
  for (size_t i = 0; i < panel.size(); i++) panel[i] = some_bf16(~seed - uint32_t(i));
  Products made{std::vector<float>(size_t(rows * 32)), std::vector<int32_t>(size_t(rows * 32))};
  const TileFactors factors{x.data(), num_steps * 4, panel.data(), num_steps};
  const TilePrefetch nothing{reinterpret_cast<const char*>(panel.data()), 0};
  tiles_in_use = by;
  multiply_bf16_by_tiles(rows, factors, nothing, made.bf16.data());
  multiply_int8_by_tiles(rows, factors, nothing, made.int8.data());
  release_tiles();
  return made;
}

bool compute_as_defined(int64_t rows, int64_t num_steps, uint32_t seed) {
  const Products found = products(Tiles::AMX, rows, num_steps, seed);
  const Products expected = products(Tiles::EMULATED, rows, num_steps, seed);
  return is_same(found.bf16.data(), expected.bf16.data(), rows * 32) && found.int8 == expected.int8;
}

bool compute_as_defined() {
  uint32_t seed = 1;
  for (int64_t rows : {1, 7, 16, 17, 32})
    for (int64_t num_steps : {1, 8, 16, 37, 128})
      if (!compute_as_defined(rows, num_steps, seed++)) return false;
  return compute_as_defined(33, 272, seed);  // in two pieces
}

}  // namespace
#endif

// `wanted` is one of `Tiles`; returns 0 if it is in use now. Otherwise products use no tiles: 1, the CPU has none; 2,
// the operating system does not permit them; 3, they compute something else. No operator may run meanwhile.
extern "C" int baton_use_tiles(int wanted) {
#if HAS_AMX
  tiles_in_use = Tiles::NONE;
  if (wanted == int(Tiles::AMX)) {
    if (!has_instructions()) return 1;
    if (!is_permitted()) return 2;
    const bool is_right = compute_as_defined();
    tiles_in_use = Tiles::NONE;
    if (!is_right) return 3;
  }
  tiles_in_use = Tiles(wanted);
  return 0;
#else
  return wanted == int(Tiles::NONE) ? 0 : 1;
#endif
}
