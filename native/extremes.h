// The largest (or smallest positive) leaf at any moment, for about 0.03 bytes an item.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace relive {

// What `Extreme` maximises: the leaf itself, or its negative where only positive leaves count.
struct Largest {
  static float key(float leaf) { return leaf; }
  static float leaf(float key) { return key; }
};
struct SmallestPositive {
  static float key(float leaf) { return leaf > 0.0f ? -leaf : -std::numeric_limits<float>::infinity(); }
  static float leaf(float key) { return -key; }
};

// Upper bounds over blocks of 256 leaves, over 16 blocks, and so on, which are tightened only when somebody asks.
//
// Invariant: no leaf under a node has a larger key than the node's bound; where the node is exact, one has that key.
// A write that raises a key makes the bounds above it exact at once. A write that lowers one matters only where it may
// have been the largest: there the bound stays, marked inexact. A question follows the largest bounds down and rescans
// one block for each bound that turns out too high. So most writes touch nothing here, and lowering a maximum costs one
// scan of 1 KB at the next question.
template <class Order>
class Extreme {
 public:
  static constexpr int kBlockShift = 8;
  static constexpr int64_t kBlock = int64_t{1} << kBlockShift;

  // `leaves` must hold `count` zeros, a multiple of 256.
  Extreme(const float* leaves, int64_t count) : leaves_(leaves) {
    int64_t nodes = count >> kBlockShift;
    levels_.emplace_back(nodes);
    while (nodes > 1) {
      nodes = (nodes + 15) / 16;
      levels_.emplace_back(nodes);
    }
  }

  // To be called for each write. O(1) for most, O(log16 count) at worst.
  void wrote(int64_t slot, float before, float after) {
    const float old_key = Order::key(before);
    const float new_key = Order::key(after);
    int64_t node = slot >> kBlockShift;
    for (std::vector<Bound>& level : levels_) {
      Bound& bound = level[static_cast<size_t>(node)];
      if (new_key >= bound.key) {
        bound = {new_key, true};
      } else if (old_key == bound.key) {
        bound.exact = false;
      } else {
        return;  // it was below the maximum here, so also above here
      }
      node >>= 4;
    }
  }

  // The extreme leaf; 0 (largest) or infinity (smallest positive) when no leaf is positive.
  float leaf() {
    tighten(levels_.size() - 1, 0);
    return Order::leaf(levels_.back()[0].key);
  }

  int64_t bytes() const {
    size_t count = 0;
    for (const std::vector<Bound>& level : levels_) count += level.size();
    return static_cast<int64_t>(count * sizeof(Bound));
  }

 private:
  struct Bound {
    float key = Order::key(0.0f);
    bool exact = true;
  };

  void tighten(size_t level, int64_t node) {
    Bound& bound = levels_[level][static_cast<size_t>(node)];
    if (bound.exact) return;
    if (level == 0) {
      const float* block = leaves_ + node * kBlock;
      float key = Order::key(block[0]);
      for (int64_t i = 1; i < kBlock; ++i) key = std::max(key, Order::key(block[i]));
      bound.key = key;
    } else {
      std::vector<Bound>& below = levels_[level - 1];
      const auto first = below.begin() + node * 16;
      const auto end = below.begin() + std::min<int64_t>(node * 16 + 16, static_cast<int64_t>(below.size()));
      while (true) {
        const auto best = std::max_element(first, end, [](const Bound& a, const Bound& b) { return a.key < b.key; });
        if (best->exact) {
          bound.key = best->key;
          break;
        }
        tighten(level - 1, best - below.begin());
      }
    }
    bound.exact = true;
  }

  const float* leaves_;
  std::vector<std::vector<Bound>> levels_;
};

}  // namespace relive
