// A sum tree of width 16 over float32 leaves, with the extremes of its leaves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "extremes.h"
#include "huge_array.h"
#include "kernels.h"

namespace relive {

// Numerical limits: leaves are finite and at most FLT_MAX, sums are float64, so no total is infinite. A parent is
// always recomputed from its children, never changed by a difference, so that no error piles up: the tree is a function
// of its leaves alone, whatever was written before. 4.6 bytes an item.
class SumTree {
 public:
  explicit SumTree(int64_t capacity)
      : leaves_(padded(capacity, Extreme<Largest>::kBlock)),
        largest_(leaves_.data(), leaves_.size()),
        smallest_(leaves_.data(), leaves_.size()) {
    int64_t nodes = (capacity + kWidth - 1) / kWidth;
    while (true) {
      sums_.emplace_back(padded(nodes, kWidth));
      counts_.push_back(nodes);
      if (nodes <= kWidth) break;
      nodes = (nodes + kWidth - 1) / kWidth;
    }
    for (HugeArray<double>& level : sums_) levels_.push_back(level.data());
  }

  SumTree(const SumTree&) = delete;
  SumTree& operator=(const SumTree&) = delete;

  // Writes the leaves in order (of equal slots the last one stays), then their parents level by level.
  // O(count log16 capacity), and never more than the whole tree.
  void write(const int64_t* slots, const float* leaves, int64_t count) {
    constexpr int64_t kAhead = 16;
    for (int64_t i = 0; i < std::min(kAhead, count); ++i) prefetch(slots[i]);
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) prefetch(slots[i + kAhead]);
      set_leaf(slots[i], leaves[i]);
    }
    refresh(slots, count);
  }

  // The two halves of a write, for slots that are written twice in a row.
  void clear_leaf(int64_t slot) { set_leaf(slot, 0.0f); }
  void refresh(const int64_t* slots, int64_t count) { kernels().refresh(view(), slots, count); }

  // The slots that hold the given masses of the cumulative sum, each in [0, total]. `masses` is overwritten.
  void locate(double* masses, int64_t count, int64_t* slots) const { kernels().locate(view(), masses, count, slots); }

  // Asks for the memory that a write to the slot will touch.
  void prefetch(int64_t slot) const {
    __builtin_prefetch(leaves_.data() + slot, 1);
    const double* sums = levels_[0] + (slot >> (2 * kShift)) * kWidth;  // the whole group is added up
    __builtin_prefetch(sums, 1);
    __builtin_prefetch(sums + kWidth / 2, 1);
  }

  float leaf(int64_t slot) const { return leaves_[slot]; }
  const float* leaves() const { return leaves_.data(); }
  double total() const { return kernels().total(view()); }

  // How many leaves are positive.
  int64_t positive() const { return positive_; }

  // 0 when no leaf is positive.
  float largest() { return largest_.leaf(); }

  // Infinity when no leaf is positive.
  float smallest_positive() { return smallest_.leaf(); }

  // What the tree takes at full capacity.
  int64_t bytes() const {
    int64_t sum = leaves_.bytes() + largest_.bytes() + smallest_.bytes();
    for (const HugeArray<double>& level : sums_) sum += level.bytes();
    return sum;
  }

 private:
  static int64_t padded(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

  TreeView view() const {
    return {const_cast<float*>(leaves_.data()), levels_.data(), counts_.data(), static_cast<int>(levels_.size())};
  }

  void set_leaf(int64_t slot, float leaf) {
    const float before = leaves_[slot];
    leaves_[slot] = leaf;
    positive_ += (leaf > 0.0f) - (before > 0.0f);
    largest_.wrote(slot, before, leaf);
    smallest_.wrote(slot, before, leaf);
  }

  HugeArray<float> leaves_;
  std::vector<HugeArray<double>> sums_;
  std::vector<double*> levels_;
  std::vector<int64_t> counts_;
  Extreme<Largest> largest_;
  Extreme<SmallestPositive> smallest_;
  int64_t positive_ = 0;
};

}  // namespace relive
