// XXH3-64 (seed 0, default secret) of units of memory, optionally while they are copied; see
// kernels/paging/checksum.py, where it is defined in a few lines of Python.
//
// Only the calling thread is used: transfers have threads of their own, and the engine needs the others.
#include "checksum.h"

#include <atomic>

#include "simd.h"

namespace {

constexpr uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
constexpr uint64_t P32_1 = 0x9E3779B1, P32_2 = 0x85EBCA77, P32_3 = 0xC2B2AE3D;
constexpr uint64_t P64_1 = 0x9E3779B185EBCA87, P64_2 = 0xC2B2AE3D27D4EB4F,
                   P64_3 = 0x165667B19E3779F9, P64_4 = 0x85EBCA77C2B2AE63,
                   P64_5 = 0x27D4EB2F165667C5;
constexpr int64_t STRIPE = 64, BLOCK = 1024;  // bytes; the secret lasts for one block of stripes
constexpr int64_t SECRET_STEP = 8;
constexpr int64_t LAST_SECRET = sizeof(SECRET) - STRIPE;

template <typename T>
T read(const uint8_t* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}

uint64_t read64(const uint8_t* p) { return read<uint64_t>(p); }
uint64_t read32(const uint8_t* p) { return read<uint32_t>(p); }
uint64_t rotl(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

uint64_t fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = (unsigned __int128)a * b;
  return uint64_t(product) ^ uint64_t(product >> 64);
}

uint64_t avalanche(uint64_t h) {
  h = (h ^ (h >> 37)) * 0x165667919E3779F9;
  return h ^ (h >> 32);
}

uint64_t avalanche64(uint64_t h) {
  h = (h ^ (h >> 33)) * P64_2;
  h = (h ^ (h >> 29)) * P64_3;
  return h ^ (h >> 32);
}

uint64_t mix(const uint8_t* p, const uint8_t* secret) {
  return fold(read64(p) ^ read64(secret), read64(p + 8) ^ read64(secret + 8));
}

uint64_t up_to_16(const uint8_t* p, int64_t length) {
  if (length > 8) {
    const uint64_t low = read64(p) ^ read64(SECRET + 24) ^ read64(SECRET + 32);
    const uint64_t high = read64(p + length - 8) ^ read64(SECRET + 40) ^ read64(SECRET + 48);
    return avalanche(uint64_t(length) + __builtin_bswap64(low) + high + fold(low, high));
  }
  if (length >= 4) {
    uint64_t h = read32(p + length - 4) + (read32(p) << 32);
    h ^= read64(SECRET + 8) ^ read64(SECRET + 16);
    h ^= rotl(h, 49) ^ rotl(h, 24);
    h *= 0x9FB21C651E98DF25;
    h ^= (h >> 35) + uint64_t(length);
    h *= 0x9FB21C651E98DF25;
    return h ^ (h >> 28);
  }
  if (length == 0) return avalanche64(read64(SECRET + 56) ^ read64(SECRET + 64));
  const uint32_t bytes = uint32_t(p[0]) << 16 | uint32_t(p[length / 2]) << 24 | p[length - 1] |
                         uint32_t(length) << 8;
  return avalanche64(bytes ^ read32(SECRET) ^ read32(SECRET + 4));
}

uint64_t up_to_128(const uint8_t* p, int64_t length) {
  uint64_t h = uint64_t(length) * P64_1;
  for (int64_t i = (length - 1) / 32; i >= 0; i--)
    h += mix(p + 16 * i, SECRET + 32 * i) + mix(p + length - 16 * (i + 1), SECRET + 32 * i + 16);
  return avalanche(h);
}

uint64_t up_to_240(const uint8_t* p, int64_t length) {
  uint64_t h = uint64_t(length) * P64_1;
  for (int64_t i = 0; i < 8; i++) h += mix(p + 16 * i, SECRET + 16 * i);
  h = avalanche(h);
  for (int64_t i = 8; i < length / 16; i++) h += mix(p + 16 * i, SECRET + 16 * (i - 8) + 3);
  return avalanche(h + mix(p + length - 16, SECRET + 136 - 17));
}

// The eight lanes of a stripe in registers. One AVX-512 register is slower than two of AVX2.
#if defined(__AVX2__)
typedef uint64_t Lanes __attribute__((vector_size(32)));
constexpr Lanes NEIGHBOURS = {1, 0, 3, 2};
Lanes product_of_halves(Lanes v) { return (Lanes)_mm256_mul_epu32((__m256i)v, (__m256i)(v >> 32)); }
void stream(uint8_t* p, Lanes v) { _mm256_stream_si256((__m256i*)p, (__m256i)v); }
#else
typedef uint64_t Lanes __attribute__((vector_size(16)));
constexpr Lanes NEIGHBOURS = {1, 0};
#if defined(__x86_64__)
Lanes product_of_halves(Lanes v) { return (Lanes)_mm_mul_epu32((__m128i)v, (__m128i)(v >> 32)); }
void stream(uint8_t* p, Lanes v) { _mm_stream_si128((__m128i*)p, (__m128i)v); }
#elif defined(__aarch64__)
Lanes product_of_halves(Lanes v) {
  return (Lanes)vmull_u32(vmovn_u64((uint64x2_t)v), vshrn_n_u64((uint64x2_t)v, 32));
}
void stream(uint8_t* p, Lanes v) { memcpy(p, &v, sizeof v); }
#else
Lanes product_of_halves(Lanes v) { return (v & 0xFFFFFFFF) * (v >> 32); }
void stream(uint8_t* p, Lanes v) { memcpy(p, &v, sizeof v); }
#endif
#endif
constexpr int NUM_REGISTERS = STRIPE / sizeof(Lanes);

struct Stripe {
  Lanes lanes[NUM_REGISTERS];

  Stripe() = default;
  // Register by register: GCC would copy the whole through the stack.
  explicit Stripe(const uint8_t* p) {
    for (int i = 0; i < NUM_REGISTERS; i++) lanes[i] = read<Lanes>(p + i * sizeof(Lanes));
  }
};

struct Sums : Stripe {
  Sums() {
    constexpr uint64_t first[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    memcpy(lanes, first, sizeof lanes);
  }

  void add(const Stripe& data, const uint8_t* secret) {
    const Stripe key(secret);
    for (int i = 0; i < NUM_REGISTERS; i++) {
      lanes[i] += __builtin_shuffle(data.lanes[i], NEIGHBOURS);
      lanes[i] += product_of_halves(data.lanes[i] ^ key.lanes[i]);
    }
  }

  void scramble() {
    const Stripe key(SECRET + LAST_SECRET);
    for (int i = 0; i < NUM_REGISTERS; i++)
      lanes[i] = (lanes[i] ^ (lanes[i] >> 47) ^ key.lanes[i]) * P32_1;
  }

  uint64_t merged(int64_t length) const {
    uint64_t sums[8], h = uint64_t(length) * P64_1;
    memcpy(sums, lanes, sizeof sums);
    for (int i = 0; i < 8; i += 2) {
      const uint8_t* secret = SECRET + 11 + 8 * i;
      h += fold(sums[i] ^ read64(secret), sums[i + 1] ^ read64(secret + 8));
    }
    return avalanche(h);
  }
};

// Prefetch distance: the hardware prefetcher stops at the end of a page, and KV is on pages of 4 KiB.
constexpr int64_t AHEAD = 2 * BLOCK;

// The address that is read `AHEAD` bytes after `p[start]`: within the unit, or in `next`, which is read after it.
const uint8_t* upcoming(const uint8_t* p, int64_t start, int64_t length, const uint8_t* next) {
  const int64_t at = start + AHEAD;
  return at < length ? p + at : next + (at - length);
}

// The checksum of `length` bytes of `p`, which are copied there from `source` first, unless it is null. It is always
// that of `p`, because another process may change the source meanwhile.
uint64_t over_240(uint8_t* p, const uint8_t* source, int64_t length, const uint8_t* next) {
  Sums sums;
  for (int64_t start = 0; start < length; start += BLOCK) {
    const int64_t left = length - start, size = left < BLOCK ? left : BLOCK;
    if (source) {
      memcpy(p + start, source + start, size_t(size));
      std::atomic_signal_fence(std::memory_order_seq_cst);  // and is read from there
    }
    // The last stripe of a unit does not belong to its block; it is added at the end.
    const int64_t num_stripes = left > BLOCK ? BLOCK / STRIPE : (left - 1) / STRIPE;
    const uint8_t* ahead = upcoming(source ? source : p, start, length, next);
    for (int64_t i = 0; i < num_stripes; i++) {
      __builtin_prefetch(ahead + i * STRIPE);
      sums.add(Stripe(p + start + i * STRIPE), SECRET + i * SECRET_STEP);
    }
    if (left > BLOCK) sums.scramble();
  }
  sums.add(Stripe(p + length - STRIPE), SECRET + LAST_SECRET - 7);
  return sums.merged(length);
}

// Reads a stripe once, stores and returns it, so that the checksum is that of the stored data. The store bypasses the
// caches, as received data is read later, and by other cores.
Stripe moved(uint8_t* p, const uint8_t* source) {
  const Stripe data(source);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  for (int i = 0; i < NUM_REGISTERS; i++) stream(p + i * sizeof(Lanes), data.lanes[i]);
  return data;
}

// Like `over_240`, for whole stripes, in one pass. `p` must be aligned for `stream`.
uint64_t streamed(uint8_t* p, const uint8_t* source, int64_t length, const uint8_t* next) {
  Sums sums;
  const int64_t last = length - STRIPE;
  for (int64_t start = 0; start < last; start += BLOCK) {
    const int64_t stop = start + BLOCK < last ? start + BLOCK : last;
    const uint8_t *secret = SECRET, *ahead = upcoming(source, start, length, next);
    for (int64_t at = start; at < stop; at += STRIPE, ahead += STRIPE, secret += SECRET_STEP) {
      __builtin_prefetch(ahead);
      sums.add(moved(p + at, source + at), secret);
    }
    if (length - start > BLOCK) sums.scramble();
  }
  sums.add(moved(p + last, source + last), SECRET + LAST_SECRET - 7);
  return sums.merged(length);
}

bool can_stream(const uint8_t* p, int64_t length) {
  return length > 240 && length % STRIPE == 0 && uintptr_t(p) % STRIPE == 0;
}

}  // namespace

uint64_t checksum(uint8_t* p, const uint8_t* source, int64_t length, const uint8_t* next) {
  if (source && can_stream(p, length)) return streamed(p, source, length, next);
  if (length > 240) return over_240(p, source, length, next);
  if (source) {
    memcpy(p, source, size_t(length));
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  if (length > 128) return up_to_240(p, length);
  return length > 16 ? up_to_128(p, length) : up_to_16(p, length);
}

void copies_end() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// The checksums of the units of all `targets`, which are copied there from `sources` first, unless null: the same
// number of blocks, possibly with other rows.
extern "C" void baton_checksums(const Blocks* targets, const Blocks* sources, int64_t num_units,
                                int64_t unit_bytes, uint64_t* checksums) {
  Cursor target{targets}, source{sources ? sources : targets};
  while (!target.is_over()) {
    uint8_t* memory = target.where();
    const uint8_t* read = source.where();
    target.next();
    source.next();
    const uint8_t* behind = source.is_over() ? read : source.where();
    for (int64_t i = 0; i < num_units; i++) {
      const int64_t start = i * unit_bytes;
      const uint8_t* next = i + 1 < num_units ? read + start + unit_bytes : behind;
      *checksums++ =
          checksum(memory + start, sources ? read + start : nullptr, unit_bytes, next);
    }
  }
  copies_end();
}
