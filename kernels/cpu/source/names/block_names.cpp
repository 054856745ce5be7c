// Chained SHA-256 names of KV blocks, cut to 128 bits; see core/block_hash.py, where they are defined
// in a few lines of Python.
//
//   name[i] = SHA-256(tokens of block i as 32-bit words, little-endian; name[i - 1])
//
// Only the end of a block's message needs the name before, so all of the next block that does not is
// computed beside it.
#include <vector>

#include "sha256.h"

namespace {

constexpr int64_t NAME_BYTES = 16, LENGTH_BYTES = 8;

// One block on its way: its tokens and what has been computed of them.
class Block {
 public:
  explicit Block(int64_t block_size)
      : num_free_(4 * block_size / sha256::CHUNK_BYTES),
        num_last_bytes_(4 * block_size % sha256::CHUNK_BYTES),
        num_chained_(num_last_bytes_ + NAME_BYTES + 1 + LENGTH_BYTES <= sha256::CHUNK_BYTES ? 1 : 2) {
    parent_ = last_ + num_last_bytes_;
    parent_[NAME_BYTES] = 0x80;
    uint8_t* end = last_ + num_chained_ * sha256::CHUNK_BYTES;
    const uint64_t num_bits = 8 * uint64_t(4 * block_size + NAME_BYTES);
    for (int i = 0; i < LENGTH_BYTES; i++) *--end = uint8_t(num_bits >> 8 * i);
  }

  // Chunks of tokens alone, and those that end with the parent's name.
  int64_t num_free() const { return num_free_; }
  int64_t num_chained() const { return num_chained_; }

  void begin(const uint32_t* tokens) {
    tokens_ = reinterpret_cast<const uint8_t*>(tokens);
    state_ = {};
    memcpy(last_, tokens_ + num_free_ * sha256::CHUNK_BYTES, size_t(num_last_bytes_));
  }
  sha256::Job free(int64_t chunk) { return {&state_, tokens_ + chunk * sha256::CHUNK_BYTES}; }

  void follow(const uint8_t* parent) { memcpy(parent_, parent, NAME_BYTES); }
  sha256::Job chained(int64_t chunk) { return {&state_, last_ + chunk * sha256::CHUNK_BYTES}; }

  void write_name(uint8_t* out) const {
    for (int64_t i = 0; i < NAME_BYTES / 4; i++) {
      const uint32_t word = __builtin_bswap32(state_.words[i]);
      memcpy(out + 4 * i, &word, sizeof word);
    }
  }

 private:
  const int64_t num_free_, num_last_bytes_, num_chained_;
  const uint8_t* tokens_ = nullptr;
  uint8_t* parent_;
  sha256::State state_;
  alignas(16) uint8_t last_[2 * sha256::CHUNK_BYTES] = {};
};

// Name blocks for as long as `next`, asked for the tokens of each, has them. How many were named.
template <typename Next>
int64_t name_all(sha256::Compress compress, const uint8_t* parent, int64_t num_blocks, int64_t block_size,
                 Next next, uint8_t* names) {
  Block blocks[2]{Block(block_size), Block(block_size)};
  for (int64_t number = -1; number < num_blocks; number++) {
    Block &named = blocks[number & 1], &begun = blocks[~number & 1];
    const uint32_t* tokens = number + 1 < num_blocks ? next(number + 1) : nullptr;
    const int64_t num_chained = number < 0 ? 0 : named.num_chained(), num_free = tokens ? begun.num_free() : 0;
    if (tokens) begun.begin(tokens);
    if (number >= 0) named.follow(parent);
    for (int64_t chunk = 0; chunk < num_chained || chunk < num_free; chunk++) {
      sha256::Job jobs[2];
      int num_jobs = 0;
      if (chunk < num_chained) jobs[num_jobs++] = named.chained(chunk);
      if (chunk < num_free) jobs[num_jobs++] = begun.free(chunk);
      compress(jobs, num_jobs);
    }
    if (number >= 0) {
      named.write_name(names);
      parent = names;
      names += NAME_BYTES;
    }
    if (!tokens) return number + 1;
  }
  return num_blocks;
}

}  // namespace

// The interpreter's own PyLong_AsLongLong: the library is linked to no interpreter.
using Number = long long (*)(void* item);

extern "C" {

// Write the names of `num_blocks` full blocks of `tokens`, the first of which follows `parent`; by the
// CPU's own instructions, if it has some and `is_plain` does not say otherwise.
void baton_block_names(const uint8_t* parent, const uint32_t* tokens, int64_t num_blocks,
                       int64_t block_size, int32_t is_plain, uint8_t* names) {
  name_all(
      is_plain ? sha256::compress_by_words : sha256::best(), parent, num_blocks, block_size,
      [&](int64_t block) { return tokens + block * block_size; }, names);
}

// How the interpreter keeps numbers of one digit, 30 bits of their own: kernels/names/block_names_cpu.py finds out.
struct BatonSmallNumber {
  uint64_t type, size;  // the words behind the count of references, then comes the digit; type 0: it does not
};

// The same, of Python's numbers: each is read where it is used, as to make words of all of them first takes
// longer than the names. How many of the blocks were named: less than all, if what comes next is no token.
int64_t baton_block_names_of_items(const uint8_t* parent, void* const* items, int64_t num_blocks,
                                   int64_t block_size, Number number, const BatonSmallNumber* small,
                                   uint8_t* names) {
  const auto size = size_t(block_size);
  std::vector<uint32_t> words[2]{std::vector<uint32_t>(size), std::vector<uint32_t>(size)};
  const auto read = [&](int64_t block) -> const uint32_t* {
    for (uint32_t& word : words[block & 1]) {
      void* const item = *items++;
      const auto* its = static_cast<const uint64_t*>(item);
      if (small->type && its[1] == small->type && its[2] == small->size) {  // as nearly all tokens are
        memcpy(&word, its + 3, sizeof word);
        continue;
      }
      const long long token = number(item);
      if (token < 0 || token > UINT32_MAX) return nullptr;
      word = uint32_t(token);
    }
    return words[block & 1].data();
  };
  return name_all(sha256::best(), parent, num_blocks, block_size, read, names);
}

}
