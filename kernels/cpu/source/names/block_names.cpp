// Chained BLAKE2b names of KV blocks, cut to 128 bits; see core/block_hash.py, where they are defined
// in a few lines of Python.
//
//   name[i] = BLAKE2b-128(name[i - 1], tokens of block i as 32-bit words, little-endian)
//
// One name needs the one before, so there is nothing to share between threads, or lanes.
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t NAME_BYTES = 16, CHUNK_BYTES = 128;
constexpr uint64_t INITIAL[8] = {
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
};
// Of a digest of NAME_BYTES: no key, one leaf, a depth of one.
constexpr uint64_t PARAMETERS = 0x01010000 ^ NAME_BYTES;

uint64_t rotated(uint64_t x, int right) { return (x >> right) | (x << (64 - right)); }

inline void mix(uint64_t& a, uint64_t& b, uint64_t& c, uint64_t& d, uint64_t x, uint64_t y) {
  a += b + x;
  d = rotated(d ^ a, 32);
  c += d;
  b = rotated(b ^ c, 24);
  a += b + y;
  d = rotated(d ^ a, 16);
  c += d;
  b = rotated(b ^ c, 63);
}

// The order of the words of a chunk in one round, known to the compiler: no table is read.
template <int I0, int I1, int I2, int I3, int I4, int I5, int I6, int I7, int I8, int I9, int I10,
          int I11, int I12, int I13, int I14, int I15>
inline void round(uint64_t (&v)[16], const uint64_t (&m)[16]) {
  mix(v[0], v[4], v[8], v[12], m[I0], m[I1]);
  mix(v[1], v[5], v[9], v[13], m[I2], m[I3]);
  mix(v[2], v[6], v[10], v[14], m[I4], m[I5]);
  mix(v[3], v[7], v[11], v[15], m[I6], m[I7]);
  mix(v[0], v[5], v[10], v[15], m[I8], m[I9]);
  mix(v[1], v[6], v[11], v[12], m[I10], m[I11]);
  mix(v[2], v[7], v[8], v[13], m[I12], m[I13]);
  mix(v[3], v[4], v[9], v[14], m[I14], m[I15]);
}

void compress(uint64_t (&h)[8], const uint64_t (&m)[16], uint64_t num_bytes, bool is_last) {
  uint64_t v[16];
  memcpy(v, h, sizeof h);
  memcpy(v + 8, INITIAL, sizeof INITIAL);
  v[12] ^= num_bytes;
  if (is_last) v[14] = ~v[14];
  round<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>(v, m);
  round<14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3>(v, m);
  round<11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4>(v, m);
  round<7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8>(v, m);
  round<9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13>(v, m);
  round<2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9>(v, m);
  round<12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11>(v, m);
  round<13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10>(v, m);
  round<6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5>(v, m);
  round<10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0>(v, m);
  round<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>(v, m);
  round<14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3>(v, m);
  for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
}

// BLAKE2b-128 of `parent` and, behind it, `num_bytes` more.
void name(const uint8_t* parent, const uint8_t* bytes, int64_t num_bytes, uint8_t* out) {
  uint64_t h[8], m[16];
  memcpy(h, INITIAL, sizeof h);
  h[0] ^= PARAMETERS;
  const int64_t total = NAME_BYTES + num_bytes;
  for (int64_t start = 0; start < total; start += CHUNK_BYTES) {
    const int64_t length = total - start < CHUNK_BYTES ? total - start : CHUNK_BYTES;
    const int64_t before = start ? 0 : NAME_BYTES;  // bytes of the chunk that are the parent's
    memset(m, 0, sizeof m);
    memcpy(m, parent, size_t(before));
    memcpy(reinterpret_cast<uint8_t*>(m) + before, bytes + start + before - NAME_BYTES,
           size_t(length - before));
    compress(h, m, uint64_t(start + length), start + length == total);
  }
  memcpy(out, h, NAME_BYTES);
}

}  // namespace

// The interpreter's own PyTuple_GetItem and PyLong_AsLongLong: the library is linked to no interpreter.
using Item = void* (*)(void* tuple, intptr_t place);
using Number = long long (*)(void* item);

extern "C" {

// Write the names of `num_blocks` full blocks of `tokens`, the first of which follows `parent`.
void baton_block_names(const uint8_t* parent, const uint32_t* tokens, int64_t num_blocks,
                       int64_t block_size, uint8_t* names) {
  for (int64_t block = 0; block < num_blocks; block++) {
    name(parent, reinterpret_cast<const uint8_t*>(tokens + block * block_size), 4 * block_size,
         names);
    parent = names;
    names += NAME_BYTES;
  }
}

// The same, of a tuple of Python's numbers from the `first` of them on: each is read where it is used, as
// to make words of all of them first takes half as long as the names. How many of the blocks were
// named: less than all, if what comes next is no token.
int64_t baton_block_names_of_tuple(const uint8_t* parent, void* tuple, int64_t first,
                                   int64_t num_blocks, int64_t block_size, Item item,
                                   Number number, uint8_t* names) {
  std::vector<uint32_t> words(size_t(block_size), 0);
  for (int64_t block = 0; block < num_blocks; block++) {
    for (uint32_t& word : words) {
      const long long token = number(item(tuple, first++));
      if (token < 0 || token > UINT32_MAX) return block;
      word = uint32_t(token);
    }
    name(parent, reinterpret_cast<const uint8_t*>(words.data()), 4 * block_size, names);
    parent = names;
    names += NAME_BYTES;
  }
  return num_blocks;
}

}
