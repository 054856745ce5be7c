// Hash tables from 128-bit names to 32-bit values.
//
//   hash of a name -> directory, by its first bits -> segment -> line in it, by its last -> a free place
//
// NameMap keeps whole names, three a line of the CPU's cache. HashMap keeps their 64-bit hashes alone,
// five a line, and takes names of one hash for the same: it is for who only hints.
//
// A full segment is split in two, by one more of the first bits: no call waits until all of a large
// table has moved. Taking a name out moves those behind it up, so nothing is left to be cleaned up.
// Names made to collide would split a segment without end, and double the directory each time: from
// MAX_DEPTH on it fills up instead, and then takes none of them any more.
#pragma once
#include "segment_memory.h"

struct Name {
  uint64_t low, high;
  bool operator==(const Name&) const = default;

  // Digests are random as they are; a simulator's names, say, are not.
  uint64_t hash() const {
    const auto product =
        (unsigned __int128)(low ^ 0x9E3779B97F4A7C15) * (high ^ 0xD1B54A32D192ED03);
    return uint64_t(product) ^ uint64_t(product >> 64);
  }
};

// What is left of a name where only its hash is kept.
struct HashedName {
  uint64_t value;

  HashedName() = default;
  HashedName(const Name& name) : value(name.hash()) {}
  bool operator==(const HashedName&) const = default;
  uint64_t hash() const { return value; }
};

template <typename Key, uint32_t PER_LINE>
class KeyMap {
 public:
  static constexpr uint32_t NONE = 0;

  KeyMap() : directory_{new_segment(0, 0)} {}
  KeyMap(const KeyMap&) = delete;
  KeyMap& operator=(const KeyMap&) = delete;

  int64_t size() const { return size_; }

  // Ask memory for where `key` would be.
  void prefetch(const Key& key) const { __builtin_prefetch(&line_of(key)); }

  // Call `visit` with the value of each name of `names`, and its number, until it returns false. Lines
  // are asked for far ahead and, when they have come, those behind the full ones as well.
  template <typename Visit>
  void find_all(const Name* names, int64_t num_names, Visit visit) const {
    constexpr int64_t FAR = 32, NEAR = 12;
    const Line* lines[FAR];
    Key keys[FAR];
    for (int64_t i = -FAR; i < num_names; i++) {
      if (i >= 0 && !visit(find_from(*lines[i % FAR], keys[i % FAR]), i)) return;
      if (const int64_t far = i + FAR; far < num_names) {
        keys[far % FAR] = Key(names[far]);
        lines[far % FAR] = &line_of(keys[far % FAR]);
        __builtin_prefetch(lines[far % FAR]);
      }
      if (const int64_t near = i + NEAR; near >= 0 && near < num_names) {
        const Line* line = lines[near % FAR];
        if (line->values[PER_LINE - 1] != NONE) __builtin_prefetch(line + 1);
      }
    }
  }

  uint32_t find(const Key& key) const {
    const Segment& segment = *segment_of(key);
    return segment.value(seek(segment, key));
  }

  // Let `key` have `value`; with NONE it is taken out. False: there is no place for one that is new.
  bool put(const Key& key, uint32_t value) {
    Segment* segment = segment_of(key);
    Place place = seek(*segment, key);
    const bool is_in = segment->value(place) != NONE;
    if (value == NONE) {
      if (is_in) erase_at(*segment, place);
      return true;
    }
    if (!is_in) {
      while (segment->num >= segment->limit && segment->depth < MAX_DEPTH) {
        split(segment, key.hash());
        segment = segment_of(key);
        place = seek(*segment, key);
      }
      if (segment->num == NUM_PLACES - 1) return false;  // one is always free
      segment->key(place) = key;
      segment->num++;
      size_++;
    }
    segment->value(place) = value;
    return true;
  }

  // Let `change` give all names whose hashes begin as `first` does another value, or NONE, and let `first` be
  // what the next begin with: 0 behind the last. How many they were.
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
  struct Line {
    Key keys[PER_LINE];
    uint32_t values[PER_LINE];  // NONE: the place is free
    uint32_t unused;
  };
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
    // How far `other` is behind this, all round the end.
    uint32_t distance(Place other) const {
      const uint32_t from = PER_LINE * line + index, to = PER_LINE * other.line + other.index;
      return to >= from ? to - from : to + NUM_PLACES - from;
    }
  };

  struct alignas(64) Segment {
    Line lines[NUM_LINES];
    uint32_t depth;  // how many first bits the hashes of its names share
    uint32_t num, limit;

    Key& key(Place place) { return lines[place.line].keys[place.index]; }
    const Key& key(Place place) const { return lines[place.line].keys[place.index]; }
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

  // Where `key` is, or belongs. There is always a free place.
  static Place seek(const Segment& segment, const Key& key) {
    Place place{line(key.hash()), 0};
    while (segment.value(place) != NONE && segment.key(place) != key) place.go_round();
    return place;
  }

  // As `find`, where the line is known that the key belongs to.
  uint32_t find_from(const Line& line, const Key& key) const {
    for (uint32_t i = 0; i < PER_LINE; i++)
      if (line.values[i] == NONE || line.keys[i] == key) return line.values[i];
    return find(key);
  }

  // For hashes that begin with `first`, their first `depth` bits. Segments are full when 60 to 80 % of
  // their places are taken, each at another number: all grow alike, and are not to split at once.
  static void assign(Segment& segment, uint64_t first, uint32_t depth) {
    const uint64_t random = (first + 1) * 0x9E3779B97F4A7C15;
    segment.depth = depth;
    segment.limit = NUM_PLACES / 5 * 3 + uint32_t((random >> 32) * (NUM_PLACES / 5) >> 32);
  }

  Segment* new_segment(uint64_t first, uint32_t depth) {
    auto* segment = static_cast<Segment*>(memory_.take());
    assign(*segment, first, depth);
    return segment;
  }

  // Move half of the names of the segment that `hash` belongs to into a new one.
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
        other->key(there) = key;
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
        segment.key(hole) = key;
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

using NameMap = KeyMap<Name, 3>;
using HashMap = KeyMap<HashedName, 5>;
