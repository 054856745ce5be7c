// Interned sets of slots: each is stored once, however many names have it, and referenced by a 32-bit value.
//
//   0                no slot
//   SINGLE | slot    one slot, which takes no memory
//   otherwise        the number of a set of two or more, as bits; reference-counted
#pragma once
#include <algorithm>
#include <memory>

#include "name_map.h"

class SlotSets {
 public:
  static constexpr uint32_t EMPTY = NameMap::NONE, SINGLE = 1u << 31;

  // The bits of a set.
  struct Bits {
    std::vector<uint64_t> words;

    void assign(const uint64_t* from, size_t num_words) { words.assign(from, from + num_words); }
    bool has(uint32_t slot) const {
      return slot / 64 < words.size() && (words[slot / 64] >> slot % 64 & 1);
    }
    void add(uint32_t slot) {
      if (slot / 64 >= words.size()) words.resize(slot / 64 + 1);
      words[slot / 64] |= uint64_t(1) << slot % 64;
    }
  };

  SlotSets() { memos_[0] = memos_[1] = Memo{}; }
  SlotSets(const SlotSets&) = delete;
  SlotSets& operator=(const SlotSets&) = delete;
  ~SlotSets() {
    for (size_t id = 1; id < next_; id++) free(set(uint32_t(id)).words);
  }

  // Each of these drops one reference to `value` and adds one to the result.
  uint32_t with(uint32_t value, uint32_t slot) {
    if (value == EMPTY) return SINGLE | slot;
    if (value == (SINGLE | slot)) return value;
    return changed(value, slot, memos_[0], [&] { scratch_.add(slot); });
  }

  uint32_t without(uint32_t value, uint32_t slot) {
    if (value & SINGLE) return value == (SINGLE | slot) ? EMPTY : value;
    return value == EMPTY ? EMPTY : changed(value, slot, memos_[1], [&] { remove(slot); });
  }

  uint32_t without_all(uint32_t value, const Bits& dead) {
    if (value & SINGLE) return dead.has(value & ~SINGLE) ? EMPTY : value;
    if (value == EMPTY || !meets(value, dead)) return value;
    load(value);
    const size_t num = std::min(scratch_.words.size(), dead.words.size());
    for (size_t i = 0; i < num; i++) scratch_.words[i] &= ~dead.words[i];
    const uint32_t result = intern();
    release(value);
    return result;
  }

  bool has(uint32_t value, uint32_t slot) const {
    if (value & SINGLE || value == EMPTY) return value == (SINGLE | slot);
    const Set& found = set(value);
    return slot / 64 < found.num_words && (found.words[slot / 64] >> slot % 64 & 1);
  }

  // Removes from `bits` the slots that are not in the set, and calls `gone` with each; returns whether any are left.
  template <typename Gone>
  bool intersect(Bits& bits, uint32_t value, Gone gone) const {
    uint64_t any = 0;
    for (size_t i = 0; i < bits.words.size(); i++) {
      const uint64_t kept = bits.words[i] & word(value, i);
      for (uint64_t lost = bits.words[i] ^ kept; lost; lost &= lost - 1)
        gone(uint32_t(i * 64 + size_t(__builtin_ctzll(lost))));
      any |= bits.words[i] = kept;
    }
    return any != 0;
  }

 private:
  struct Set {
    uint64_t* words;
    uint32_t num_words, num_uses;
  };

  // Caches the last change of a kind, as the names of a chain are changed alike, one after the other.
  struct Memo {
    uint32_t from = EMPTY, slot = 0, to = EMPTY;
  };

  static constexpr size_t CHUNK = 4096;

  Set& set(uint32_t id) { return chunks_[id / CHUNK][id % CHUNK]; }
  const Set& set(uint32_t id) const { return chunks_[id / CHUNK][id % CHUNK]; }

  uint64_t word(uint32_t value, size_t index) const {
    if (value == EMPTY) return 0;
    if (value & SINGLE) {
      const uint32_t slot = value & ~SINGLE;
      return slot / 64 == index ? uint64_t(1) << slot % 64 : 0;
    }
    const Set& found = set(value);
    return index < found.num_words ? found.words[index] : 0;
  }

  bool meets(uint32_t value, const Bits& bits) const {
    for (size_t i = 0; i < bits.words.size(); i++)
      if (bits.words[i] & word(value, i)) return true;
    return false;
  }

  void load(uint32_t value) {
    if (value & SINGLE) {
      scratch_.words.clear();
      scratch_.add(value & ~SINGLE);
    } else {
      scratch_.assign(set(value).words, set(value).num_words);
    }
  }

  void remove(uint32_t slot) {
    if (scratch_.has(slot)) scratch_.words[slot / 64] ^= uint64_t(1) << slot % 64;
  }

  template <typename Change>
  uint32_t changed(uint32_t value, uint32_t slot, Memo& memo, Change change) {
    uint32_t result;
    if (memo.from == value && memo.slot == slot) {
      result = memo.to;
      if (!(result & SINGLE)) set(result).num_uses++;
    } else {
      load(value);
      change();
      result = intern();
    }
    memo = {value, slot, result};
    release(value);
    return result;
  }

  // The value of `scratch_`, with one more reference.
  uint32_t intern() {
    auto& words = scratch_.words;
    while (!words.empty() && !words.back()) words.pop_back();
    if (words.empty()) return EMPTY;
    int num_slots = 0;
    for (uint64_t each : words) num_slots += __builtin_popcountll(each);
    if (num_slots == 1)
      return SINGLE | uint32_t((words.size() - 1) * 64 + size_t(__builtin_ctzll(words.back())));
    const Name content = digest(words.data(), words.size());
    const uint32_t known = by_content_.find(content);
    if (known == NameMap::NONE) {
      const uint32_t id = keep(words);
      by_content_.put(content, id);
      return id;
    }
    if (!equals(set(known), words)) return keep(words);  // found by nobody else, and right
    set(known).num_uses++;
    return known;
  }

  static bool equals(const Set& one, const std::vector<uint64_t>& words) {
    return one.num_words == words.size() && !memcmp(one.words, words.data(), 8 * words.size());
  }

  uint32_t keep(const std::vector<uint64_t>& words) {
    uint32_t id;
    if (free_.empty()) {
      id = uint32_t(next_++);
      if (id / CHUNK == chunks_.size()) chunks_.emplace_back(new Set[CHUNK]);
    } else {
      id = free_.back();
      free_.pop_back();
    }
    auto* copy = static_cast<uint64_t*>(malloc(8 * words.size()));
    if (!copy) throw std::bad_alloc();
    memcpy(copy, words.data(), 8 * words.size());
    set(id) = {copy, uint32_t(words.size()), 1};
    return id;
  }

  void release(uint32_t value) {
    if (value & SINGLE || value == EMPTY || --set(value).num_uses) return;
    Set& unused = set(value);
    const Name content = digest(unused.words, unused.num_words);
    if (by_content_.find(content) == value) by_content_.put(content, NameMap::NONE);
    free(unused.words);
    unused = {nullptr, 0, 0};
    free_.push_back(value);
    for (Memo& memo : memos_)
      if (memo.from == value || memo.to == value) memo = Memo{};
  }

  static Name digest(const uint64_t* words, size_t num_words) {
    Name name{0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F + num_words};
    for (size_t i = 0; i < num_words; i++) {
      name.low = fold(name.low ^ words[i], 0x9FB21C651E98DF25);
      name.high = fold(name.high + words[i], 0xA0761D6478BD642F ^ name.low);
    }
    return name;
  }

  static uint64_t fold(uint64_t a, uint64_t b) {
    const unsigned __int128 product = (unsigned __int128)a * b;
    return uint64_t(product) ^ uint64_t(product >> 64);
  }

  NameMap by_content_;
  std::vector<std::unique_ptr<Set[]>> chunks_;
  size_t next_ = 1;
  std::vector<uint32_t> free_;
  Bits scratch_;
  Memo memos_[2];
};
