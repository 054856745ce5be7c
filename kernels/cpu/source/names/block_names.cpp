// Chained SHA-256 names of KV blocks, truncated to 128 bits; see core/block_hash.py, where they are defined in a few
// lines of Python.
//
//   name[i] = SHA-256(tokens of block i as 32-bit words, little-endian; name[i - 1])
//
// Only the end of a block's message needs the previous name, so everything of the next block that does not is computed
// in parallel.
#include <vector>

#include "sha256.h"

namespace {

constexpr int64_t NAME_BYTES = 16, LENGTH_BYTES = 8;

// A block in progress: its tokens and the state of its hash.
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

  // Number of chunks of tokens alone; the others end with the parent's name.
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

// Names blocks as long as `next` returns tokens; returns their number.
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

// The interpreter's PyLong_AsLongLong, passed in because the library is not linked to an interpreter.
using Number = long long (*)(void* item);

extern "C" {

// Writes the names of `num_blocks` full blocks of `tokens`; `parent` is the name before the first. Uses the CPU's hash
// instructions, if available, unless `is_plain`.
void baton_block_names(const uint8_t* parent, const uint32_t* tokens, int64_t num_blocks,
                       int64_t block_size, int32_t is_plain, uint8_t* names) {
  name_all(
      is_plain ? sha256::compress_by_words : sha256::best(), parent, num_blocks, block_size,
      [&](int64_t block) { return tokens + block * block_size; }, names);
}

// The memory layout of integers with one digit of 30 bits, as found out by kernels/names/block_names_cpu.py.
struct BatonSmallNumber {
  uint64_t type, size;  // the words behind the count of references, then comes the digit; type 0: it does not
};

// The same for Python integers. Each is read when it is used, as converting all of them first takes longer than
// hashing. Returns the number of named blocks: less than all if the next item is not a token.
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
