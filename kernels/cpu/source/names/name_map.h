// Hash tables from 128-bit names to 32-bit values.
//
//   hash of a name -> directory, by its first bits -> segment -> line in it, by its last bits -> a free place
//
// NameMap stores whole names, three per cache line. HashMap stores 40 bits of their hashes only, seven per line, and
// confuses names that agree in these: it is for hints only.
//
// A full segment is split in two by one more of the first bits (extendible hashing), so no call has to move a whole
// large table. Removing a name moves later ones up, so there are no tombstones.
//
// Names made to collide would split a segment, and double the directory, without end: from MAX_DEPTH on segments fill
// up instead, and then no such names are added any more.
#pragma once
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "segment_memory.h"

struct Name {
  uint64_t low, high;
  bool operator==(const Name&) const = default;

  // Mixed, because digests are random but a simulator's names, say, are not.
  uint64_t hash() const {
    const auto product =
        (unsigned __int128)(low ^ 0x9E3779B97F4A7C15) * (high ^ 0xD1B54A32D192ED03);
    return uint64_t(product) ^ uint64_t(product >> 64);
  }
};

// The stored part of a name: the first 20 and the last 20 bits of its hash.
struct HashedName {
  uint32_t low;
  uint8_t high;

  HashedName() = default;
  HashedName(const Name& name) {
    const uint64_t hash = name.hash(), kept = hash >> 44 << 20 | (hash & 0xFFFFF);
    low = uint32_t(kept);
    high = uint8_t(kept >> 32);
  }
  bool operator==(const HashedName& other) const { return low == other.low && high == other.high; }
  // A hash of 64 bits made of them: the first bits select segments, bits from 31 on select lines.
  uint64_t hash() const {
    const uint64_t kept = uint64_t(high) << 32 | low;
    return kept >> 20 << 44 | (kept & 0xFFFFF) << 12;
  }
};

// A cache line, whose places are filled in order.
template <typename Key, uint32_t NUM>
struct alignas(64) MapLine {
  uint32_t values[NUM];  // 0: the place is free
  Key keys[NUM];

  const Key& key(uint32_t index) const { return keys[index]; }
  void set_key(uint32_t index, const Key& key) { keys[index] = key; }

  // The place of `key`, or the first free one; NUM if all are taken by other keys.
  uint32_t seek(const Key& key) const {
    uint32_t index = 0;
    while (index < NUM && values[index] && !(keys[index] == key)) index++;
    return index;
  }
};

template <>
struct alignas(64) MapLine<HashedName, 7> {
  uint32_t values[7], lows[7];
  uint8_t highs[7], unused;

  HashedName key(uint32_t index) const {
    HashedName key;
    key.low = lows[index];
    key.high = highs[index];
    return key;
  }
  void set_key(uint32_t index, HashedName key) {
    lows[index] = key.low;
    highs[index] = key.high;
  }

  uint32_t seek(HashedName key) const {
#ifdef __AVX2__
    const auto mask = [](const uint32_t* words, uint32_t wanted) {
      const auto eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
      const auto equal = _mm256_cmpeq_epi32(eight, _mm256_set1_epi32(int32_t(wanted)));
      return uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(equal)));
    };
    const uint32_t free = mask(values, 0) & 0x7F, num = free ? uint32_t(__builtin_ctz(free)) : 7;
    for (uint32_t equal = mask(lows, key.low) & ((1u << num) - 1); equal; equal &= equal - 1)
      if (const auto index = uint32_t(__builtin_ctz(equal)); highs[index] == key.high) return index;
    return num;
#else
    uint32_t index = 0;
    while (index < 7 && values[index] && !(lows[index] == key.low && highs[index] == key.high)) index++;
    return index;
#endif
  }
};

// FULL_FROM: percentage of taken places from which the first segments count as full.
template <typename Key, uint32_t PER_LINE, uint32_t FULL_FROM>
class KeyMap {
 public:
  static constexpr uint32_t NONE = 0;

  KeyMap() : directory_{new_segment(0, 0)} {}
  KeyMap(const KeyMap&) = delete;
  KeyMap& operator=(const KeyMap&) = delete;

  int64_t size() const { return size_; }

  // Prefetches the line of `key`.
  void prefetch(const Key& key) const { __builtin_prefetch(&line_of(key)); }

  // Calls `visit` with the value of each name of `names`, and its index, until it returns false. Lines are prefetched
  // far ahead, and so are, once these have arrived, the lines after full ones.
  template <typename Visit>
  void find_all(const Name* names, int64_t num_names, Visit visit) const {
    constexpr int64_t FAR = 32, NEAR = 12;
    const Segment* segments[FAR];
    uint32_t lines[FAR];
    Key keys[FAR];
    for (int64_t i = -FAR; i < num_names; i++) {
      const auto here = size_t(i + FAR) % FAR;
      if (i >= 0 && !visit(segments[here]->value(seek(*segments[here], keys[here], lines[here])), i)) return;
      if (i + FAR < num_names) {
        const Key key(names[i + FAR]);
        keys[here] = key;
        lines[here] = line(key.hash());
        segments[here] = segment_of(key);
        __builtin_prefetch(&segments[here]->lines[lines[here]]);
      }
      if (const int64_t near = i + NEAR; near >= 0 && near < num_names) {
        const auto there = size_t(near) % FAR;
        const Line* next = &segments[there]->lines[lines[there]];
        if (next->values[PER_LINE - 1] != NONE) __builtin_prefetch(next + 1);
      }
    }
  }

  uint32_t find(const Key& key) const {
    const Segment& segment = *segment_of(key);
    return segment.value(seek(segment, key));
  }

  // Sets the value of `key`; NONE removes it. Returns false if there is no place for a new key.
  bool put(const Key& key, uint32_t value) {
    bool has_room = true;
    change(key, [&](uint32_t) { return value; }, &has_room);
    return has_room;
  }

  // Replaces the value of `key` by change(value), where NONE stands for a missing key; returns whether it differs.
  // `has_room` becomes false if there is no place for a new key.
  template <typename Change>
  bool change(const Key& key, Change change, bool* has_room = nullptr) {
    Segment* segment = segment_of(key);
    Place place = seek(*segment, key);
    const uint32_t before = segment->value(place), after = change(before);
    if (after == before) return false;
    if (after == NONE) {
      erase_at(*segment, place);
      return true;
    }
    if (before == NONE) {
      while (segment->num >= segment->limit && segment->depth < MAX_DEPTH) {
        split(segment, key.hash());
        segment = segment_of(key);
        place = seek(*segment, key);
      }
      if (segment->num == NUM_PLACES - 1) {  // one is always free
        if (has_room) *has_room = false;
        return false;
      }
      segment->set_key(place, key);
      segment->num++;
      size_++;
    }
    segment->value(place) = after;
    return true;
  }

  // Applies `change` to the values of all names of the segment that `first` belongs to, and advances `first` to the
  // next segment, or to 0 after the last. Returns the number of names.
  template <typename Change>
  int64_t change_segment(uint64_t& first, Change change) {
    Segment& segment = *directory_[first_bits(first, depth_)];
    const int64_t num_before = segment.num;
    for (Place place{0, 0}; place.line < NUM_LINES;) {
      uint32_t& value = segment.value(place);
      const uint32_t changed = value == NONE ? NONE : change(value);
      if (changed == NONE && value != NONE) {
        erase_at(segment, place);  // another may have come here
      } else {
        value = changed;
        place.advance();
      }
    }
    first = segment.depth ? first + (uint64_t(1) << (64 - segment.depth)) : 0;
    return num_before;
  }

 private:
  using Line = MapLine<Key, PER_LINE>;
  static_assert(sizeof(Line) == 64);

  static constexpr uint32_t NUM_LINES = SegmentMemory::BYTES / sizeof(Line) - 1, NUM_PLACES = PER_LINE * NUM_LINES;
  static constexpr uint32_t MAX_DEPTH = 20;  // a directory of 8 MB, for two billion names

  struct Place {
    uint32_t line, index;

    void advance() {
      if (++index == PER_LINE) line++, index = 0;
    }
    void go_round() {
      advance();
      if (line == NUM_LINES) line = 0;
    }
    // Distance to `other`, which comes later, modulo the size.
    uint32_t distance(Place other) const {
      const uint32_t from = PER_LINE * line + index, to = PER_LINE * other.line + other.index;
      return to >= from ? to - from : to + NUM_PLACES - from;
    }
  };

  struct alignas(64) Segment {
    Line lines[NUM_LINES];
    uint32_t depth;  // how many first bits the hashes of its names share
    uint32_t num, limit;

    Key key(Place place) const { return lines[place.line].key(place.index); }
    void set_key(Place place, const Key& key) { lines[place.line].set_key(place.index, key); }
    uint32_t& value(Place place) { return lines[place.line].values[place.index]; }
    uint32_t value(Place place) const { return lines[place.line].values[place.index]; }
  };
  static_assert(sizeof(Segment) == SegmentMemory::BYTES);

  static uint64_t first_bits(uint64_t hash, uint32_t depth) { return depth ? hash >> (64 - depth) : 0; }

  Segment* segment_of(const Key& key) const { return directory_[first_bits(key.hash(), depth_)]; }

  static uint32_t line(uint64_t hash) { return uint32_t((hash & 0xFFFFFFFF) * NUM_LINES >> 32); }

  const Line& line_of(const Key& key) const {
    const uint64_t hash = key.hash();
    return directory_[first_bits(hash, depth_)]->lines[line(hash)];
  }

  // The place of `key`, or where it belongs. There is always a free place.
  static Place seek(const Segment& segment, const Key& key) { return seek(segment, key, line(key.hash())); }

  // The same if its line is known.
  static Place seek(const Segment& segment, const Key& key, uint32_t number) {
    for (;; number = number + 1 < NUM_LINES ? number + 1 : 0)
      if (const uint32_t index = segment.lines[number].seek(key); index < PER_LINE) return {number, index};
  }

  // Assigns hashes whose first `depth` bits are those of `first` to the segment. Segments are full when FULL_FROM to
  // FULL_FROM + 20 % of their places are taken, at different numbers, because all grow alike, and should not split at
  // the same time.
  static void assign(Segment& segment, uint64_t first, uint32_t depth) {
    const uint64_t random = (first + 1) * 0x9E3779B97F4A7C15;
    segment.depth = depth;
    segment.limit = NUM_PLACES * FULL_FROM / 100 + uint32_t((random >> 32) * (NUM_PLACES / 5) >> 32);
  }

  Segment* new_segment(uint64_t first, uint32_t depth) {
    auto* segment = static_cast<Segment*>(memory_.take());
    assign(*segment, first, depth);
    return segment;
  }

  // Moves half of the names of the segment of `hash` to a new one.
  void split(Segment* full, uint64_t hash) {
    if (full->depth == depth_) {
      std::vector<Segment*> wider(2 * directory_.size());
      for (size_t i = 0; i < wider.size(); i++) wider[i] = directory_[i / 2];
      directory_.swap(wider);
      depth_++;
    }
    const uint64_t moved = first_bits(hash, full->depth + 1) | 1;  // the upper half
    assign(*full, moved - 1, full->depth + 1);
    Segment* other = new_segment(moved, full->depth);
    const size_t span = size_t(1) << (depth_ - full->depth);
    for (size_t i = 0; i < span; i++) directory_[moved * span + i] = other;
    for (Place place{0, 0}; place.line < NUM_LINES;) {
      const Key key = full->key(place);
      const uint32_t value = full->value(place);
      if (value != NONE && first_bits(key.hash(), full->depth) == moved) {
        const Place there = seek(*other, key);
        other->set_key(there, key);
        other->value(there) = value;
        other->num++;
        size_++;
        erase_at(*full, place);
      } else {
        place.advance();
      }
    }
  }

  void erase_at(Segment& segment, Place hole) {
    for (Place place = hole;;) {
      place.go_round();
      const uint32_t value = segment.value(place);
      if (value == NONE) break;
      const Key key = segment.key(place);
      const Place home{line(key.hash()), 0};
      if (home.distance(place) >= hole.distance(place)) {  // else it would come before its home
        segment.set_key(hole, key);
        segment.value(hole) = value;
        hole = place;
      }
    }
    segment.value(hole) = NONE;
    segment.num--;
    size_--;
  }

  SegmentMemory memory_;
  uint32_t depth_ = 0;
  int64_t size_ = 0;
  std::vector<Segment*> directory_;  // by the first `depth_` bits; a segment is there several times
};

using NameMap = KeyMap<Name, 3, 60>;
using HashMap = KeyMap<HashedName, 7, 66>;
