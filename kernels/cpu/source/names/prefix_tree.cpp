// A radix tree of prompts' block names; see kernels/names/prefix_tree.py.
//
// Not thread-safe: callers must serialize their calls.
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "name_map.h"

namespace {

struct NameHash {
  size_t operator()(const Name& name) const { return name.hash(); }
};

struct Stretch;
using Stretches = std::unordered_map<Name, std::unique_ptr<Stretch>, NameHash>;  // by the first name

// An edge of the tree: names without a branch or an end of a prompt between them.
struct Stretch {
  std::vector<Name> names;
  std::vector<std::pair<uint32_t, int64_t>> prompts;  // those that go through it, by number, in order
  Stretches after;

  auto place_of(uint32_t number) {
    return std::lower_bound(prompts.begin(), prompts.end(), number,
                            [](const auto& one, uint32_t other) { return one.first < other; });
  }
  void enter(uint32_t number) {
    const auto place = place_of(number);
    if (place != prompts.end() && place->first == number)
      place->second++;
    else
      prompts.insert(place, {number, 1});
  }
  void leave(uint32_t number) {
    const auto place = place_of(number);
    if (place != prompts.end() && place->first == number && --place->second == 0) prompts.erase(place);
  }
  // Names are chained, so those that agree at one depth agree before it.
  int64_t num_common(const Name* others, int64_t num_others) const {
    int64_t least = 0, most = std::min(int64_t(names.size()), num_others);
    if (most && names[size_t(most - 1)] == others[most - 1]) return most;
    while (least < most) {
      const int64_t middle = (least + most + 1) / 2;
      if (names[size_t(middle - 1)] == others[middle - 1])
        least = middle;
      else
        most = middle - 1;
    }
    return least;
  }
  void split(int64_t num_names) {
    auto behind = std::make_unique<Stretch>();
    behind->names.assign(names.begin() + num_names, names.end());
    behind->prompts = prompts;
    behind->after.swap(after);
    names.resize(size_t(num_names));
    names.shrink_to_fit();
    const Name first = behind->names[0];
    after.emplace(first, std::move(behind));
  }
  // Merges with the edge below, if all prompts continue there.
  void join() {
    if (after.size() != 1 || after.begin()->second->prompts != prompts) return;
    const std::unique_ptr<Stretch> behind = std::move(after.begin()->second);
    names.insert(names.end(), behind->names.begin(), behind->names.end());
    after.swap(behind->after);
  }
};

struct PrefixTree {
  Stretches first;
};

// Calls `visit` with each edge on the path of a prompt and the length of the common prefix at its end; returns the
// number of edges.
template <typename Visit>
int64_t pass(const PrefixTree* tree, const Name* names, int64_t num_names, Visit visit) {
  const Stretches* stretches = &tree->first;
  int64_t num_passed = 0;
  for (int64_t depth = 0; depth < num_names;) {
    const auto found = stretches->find(names[depth]);
    if (found == stretches->end()) break;
    const Stretch& stretch = *found->second;
    const int64_t num_common = stretch.num_common(names + depth, num_names - depth);
    depth += num_common, num_passed++;
    visit(stretch, depth);
    if (num_common < int64_t(stretch.names.size())) break;
    stretches = &stretch.after;
  }
  return num_passed;
}

}  // namespace

extern "C" {

PrefixTree* baton_prefixes_new() { return new PrefixTree; }

void baton_prefixes_free(PrefixTree* tree) { delete tree; }

bool baton_prefixes_is_empty(const PrefixTree* tree) { return tree->first.empty(); }

// Adds a prompt of `number`.
void baton_prefixes_add(PrefixTree* tree, uint32_t number, const Name* names, int64_t num_names) {
  Stretches* stretches = &tree->first;
  for (int64_t depth = 0; depth < num_names;) {
    std::unique_ptr<Stretch>& stretch = (*stretches)[names[depth]];
    if (!stretch) {
      stretch = std::make_unique<Stretch>();
      stretch->names.assign(names + depth, names + num_names);
    } else if (const int64_t common = stretch->num_common(names + depth, num_names - depth);
               common < int64_t(stretch->names.size())) {
      stretch->split(common);
    }
    stretch->enter(number);
    depth += int64_t(stretch->names.size());
    stretches = &stretch->after;
  }
}

// Removes a prompt that was added.
void baton_prefixes_remove(PrefixTree* tree, uint32_t number, const Name* names, int64_t num_names) {
  Stretches* stretches = &tree->first;
  Stretch* last = nullptr;
  for (int64_t depth = 0; depth < num_names;) {
    const auto found = stretches->find(names[depth]);
    if (found == stretches->end()) break;
    Stretch* stretch = found->second.get();
    stretch->leave(number);
    if (stretch->prompts.empty()) {  // nobody goes through those after it, either
      stretches->erase(found);
      break;
    }
    last = stretch;
    depth += int64_t(stretch->names.size());
    stretches = &stretch->after;
  }
  if (last) last->join();
}

// Writes to `depths`, unless null, the length by number of the longest prefix that the prompt shares with one of that
// number. Returns the number of edges on its path.
int64_t baton_prefixes_depths(const PrefixTree* tree, const Name* names, int64_t num_names, uint32_t* depths) {
  return pass(tree, names, num_names, [&](const Stretch& stretch, int64_t depth) {
    if (!depths) return;
    for (const auto& [number, num] : stretch.prompts) depths[number] = uint32_t(depth);
  });
}

}
