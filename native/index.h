// The index of a replay buffer: which experiences are stored, how likely each is drawn, and the draws themselves.
//
// It knows nothing about the experiences. Whoever calls it checks arguments first; a priority is checked here, whole
// arrays before the first write.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "kernels.h"
#include "random.h"
#include "slots.h"
#include "sum_tree.h"

namespace relive {

// Where a draw writes: room for the number asked for or the number that can be drawn, whichever is less.
struct Draw {
  int64_t* ids;
  int64_t* slots;
  double* probabilities;
  double* weights;
};

enum class Drawing {
  kStratified = 0,   // one from each of `count` equal shares of the total
  kIndependent = 1,  // each from the whole total
  kDistinct = 2,     // no item twice: each from the total of those not drawn yet
};

struct DrawRule {
  Drawing drawing;
  double beta;       // exponent of the importance weights
  bool over_buffer;  // weights over the largest in the buffer instead of the largest in the batch
};

class Index {
 public:
  // alpha >= 0; capacity >= 1.
  Index(int64_t capacity, double alpha, uint64_t seed)
      : capacity_(capacity), alpha_(alpha), random_(seed), slots_(capacity), tree_(capacity) {}

  int64_t capacity() const { return capacity_; }
  double alpha() const { return alpha_; }
  int64_t size() const { return slots_.size(); }
  int64_t drawable() const { return tree_.positive(); }
  double total() const { return tree_.total(); }
  Slots& slots() { return slots_; }
  const Slots& slots() const { return slots_; }
  SumTree& tree() { return tree_; }
  Random& random() { return random_; }
  int64_t bytes() const { return tree_.bytes() + slots_.bytes(); }

  // ---- Priorities. A raw priority p becomes the leaf p^alpha; both are kept to float32's 24 bits. 0 stays 0, and no
  // positive priority becomes 0.

  // The position of the first priority that is NaN, infinite, negative, or too large to be a float32 or a leaf; -1:
  // none.
  int64_t first_bad(const double* priorities, int64_t count) {
    to_leaves(priorities, count);
    for (int64_t i = 0; i < count; ++i) {
      if (!(priorities[i] >= 0.0 && priorities[i] <= kLargest && powers_[static_cast<size_t>(i)] <= kLargest)) return i;
    }
    return -1;
  }

  // The leaf of a new item without a priority: the largest among live ones, 1 where none is positive.
  float default_leaf() {
    const float largest = tree_.largest();
    return largest > 0.0f ? largest : 1.0f;
  }

  // The same as a raw priority, as it will be once `victims` (each stored, none twice) have left.
  double default_priority(const int64_t* victims, int64_t count) {
    std::vector<int64_t> slots(static_cast<size_t>(count));
    std::vector<float> leaves(static_cast<size_t>(count));
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i] = slots_.find(victims[i]);
      leaves[i] = tree_.leaf(slots[i]);
    }
    const std::vector<float> zeros(static_cast<size_t>(count), 0.0f);
    tree_.write(slots.data(), zeros.data(), count);
    const double priority = priority_of(default_leaf());
    tree_.write(slots.data(), leaves.data(), count);
    return priority;
  }

  // The raw priority behind a leaf: the shortest decimal that has this leaf. With alpha 0 every priority has leaf 1.
  double priority_of(float leaf) {
    if (leaf == 0.0f || alpha_ == 0.0) return leaf;
    double estimate = leaf;
    kernels().power(&estimate, 1, 1.0 / alpha_, &estimate);
    estimate = std::min(estimate, kLargest);
    for (int digits = 1; digits <= 9; ++digits) {
      char text[32];
      std::snprintf(text, sizeof text, "%.*g", digits, estimate);
      const double decimal = std::strtod(text, nullptr);
      to_leaves(&decimal, 1);
      if (leaves_[0] == leaf) return decimal;
    }
    return static_cast<float>(estimate);
  }

  // Mean raw priority of what is stored; 0 when nothing is. O(capacity).
  double mean_priority() const {
    if (size() == 0) return 0.0;
    if (alpha_ == 0.0) return total() / static_cast<double>(size());
    constexpr int64_t kChunk = 1024;
    double chunk[kChunk];
    double sum = 0.0;
    for (int64_t start = 0; start < capacity_; start += kChunk) {
      const int64_t count = std::min(kChunk, capacity_ - start);
      std::copy_n(tree_.leaves() + start, count, chunk);
      kernels().power(chunk, count, 1.0 / alpha_, chunk);
      double part = 0.0;
      for (int64_t i = 0; i < count; ++i) part += chunk[i];
      sum += part;
    }
    return sum / static_cast<double>(size());
  }

  // ---- Writes.

  // Adds one item, in place of the oldest where the buffer is full, and returns its id; without a priority it gets the
  // default one. When the priority is bad nothing is done, and the result is -1.
  int64_t push(std::optional<double> priority) {
    if (priority && first_bad(&*priority, 1) >= 0) return -1;
    const float given = priority ? leaves_[0] : 0.0f;
    if (size() == capacity_) evict(slots_.oldest(1).data(), 1);
    const float leaf = priority ? given : default_leaf();
    const int64_t id = slots_.next_id();
    work_.assign(1, slots_.insert(id));
    tree_.write(work_.data(), &leaf, 1);
    refresh_evicted();
    return id;
  }

  // Adds `count` <= capacity items with the default priority, in place of the oldest; their slots are in new_slots().
  void extend(int64_t count) {
    const int64_t excess = size() + count - capacity_;
    const std::vector<int64_t> victims = excess > 0 ? slots_.oldest(excess) : std::vector<int64_t>();
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = slots_.next_id() + static_cast<int64_t>(i);
    replace(victims.data(), static_cast<int64_t>(victims.size()), ids.data(), count, nullptr);
  }

  const int64_t* new_slots() const { return work_.data(); }

  // Takes `victims` out (each stored, none twice), then puts `ids` in (increasing, from next_id() on, no more than
  // there is room for). `priorities` null: each gets the largest live one. Priorities must not be bad.
  void replace(const int64_t* victims, int64_t victim_count, const int64_t* ids, int64_t count,
               const double* priorities) {
    if (victim_count > 0) evict(victims, victim_count);
    if (priorities != nullptr) {
      to_leaves(priorities, count);
    } else {
      leaves_.assign(static_cast<size_t>(count), default_leaf());
    }
    work_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) work_[static_cast<size_t>(i)] = slots_.insert(ids[i]);
    tree_.write(work_.data(), leaves_.data(), count);
    refresh_evicted();
  }

  // Sets the priorities of those ids that are still stored, and returns how many; of an id named twice the last counts.
  // With epsilon >= 0 the values are TD errors, and the priorities |error| + epsilon. When a priority is bad nothing is
  // written, and the result is -1 - (its position).
  int64_t update(const int64_t* ids, const double* values, int64_t count, double epsilon) {
    if (epsilon >= 0.0) {
      errors_.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) errors_[static_cast<size_t>(i)] = std::fabs(values[i]) + epsilon;
      values = errors_.data();
    }
    work_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = slots_.find(ids[i]);
      work_[static_cast<size_t>(i)] = slot;
      if (slot >= 0) tree_.prefetch(slot);  // comes while the powers are computed
    }
    const int64_t bad = first_bad(values, count);
    if (bad >= 0) return -1 - bad;
    int64_t live = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = work_[static_cast<size_t>(i)];
      if (slot < 0) continue;
      work_[static_cast<size_t>(live)] = slot;
      leaves_[static_cast<size_t>(live)] = leaves_[static_cast<size_t>(i)];
      ++live;
    }
    tree_.write(work_.data(), leaves_.data(), live);
    return live;
  }

  // ---- Draws.

  // Draws `count` items in proportion to their leaves; where fewer can be drawn, each of those once, by increasing id.
  // Returns how many were written. O(count log16 capacity).
  int64_t draw(int64_t count, const DrawRule& rule, const Draw& out) {
    if (drawable() < count) {
      count = draw_all(out);
    } else if (rule.drawing == Drawing::kDistinct) {
      draw_distinct(count, out);
    } else if (alpha_ == 0.0 && slots_.is_ring() && drawable() == size()) {
      for (int64_t i = 0; i < count; ++i) {
        out.slots[i] = slots_.ring_slot(static_cast<int64_t>(random_.below(static_cast<uint64_t>(size()))));
      }
    } else {
      draw_slots(count, rule.drawing == Drawing::kStratified, out.weights, out.slots);
    }
    weigh(count, rule, out);
    return count;
  }

  // The ids that hold the given shares u in [0, 1] of the cumulative leaves. Something must be drawable.
  void locate(const double* shares, int64_t count, int64_t* ids) {
    std::vector<double> masses(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) masses[static_cast<size_t>(i)] = shares[i] * total();
    tree_.locate(masses.data(), count, ids);
    for (int64_t i = 0; i < count; ++i) ids[i] = slots_.id_at(ids[i]);
  }

  // Fills an empty index from a checkpoint: ids with their slots and leaves, and the free slots in their order, or none
  // for a ring. False, and nothing is done, when these contradict each other.
  bool restore(const int64_t* ids, const int64_t* slots, const float* leaves, int64_t count, const int64_t* free,
               int64_t free_count, bool ring) {
    if (size() != 0 || count + (ring ? 0 : free_count) > capacity_) return false;
    if (!ring && count + free_count != capacity_) return false;
    std::vector<bool> taken(static_cast<size_t>(capacity_), false);
    for (int64_t i = 0; i < count + (ring ? 0 : free_count); ++i) {
      const int64_t slot = i < count ? slots[i] : free[i - count];
      if (slot < 0 || slot >= capacity_ || taken[static_cast<size_t>(slot)]) return false;
      taken[static_cast<size_t>(slot)] = true;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || (i > 0 && ids[i] <= ids[i - 1])) return false;
      if (!(leaves[i] >= 0.0f && leaves[i] <= FLT_MAX)) return false;
      if (ring && (ids[i] != ids[0] + i || slots[i] != ids[i] % capacity_)) return false;
    }
    if (ring) {
      slots_.restore_ring(count > 0 ? ids[0] : 0, count);
    } else {
      slots_.restore_tables(ids, slots, count, free, free_count);
    }
    tree_.write(slots, leaves, count);
    return true;
  }

 private:
  static constexpr double kLargest = FLT_MAX;
  static constexpr double kSmallest = FLT_MIN;

  // leaves_[i] = priorities[i]^alpha; powers_ holds the same before it is rounded.
  void to_leaves(const double* priorities, int64_t count) {
    powers_.resize(static_cast<size_t>(count));
    leaves_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const double p = priorities[i];
      powers_[static_cast<size_t>(i)] = p > 0.0 ? std::max<double>(static_cast<float>(p), kSmallest) : 0.0;
    }
    kernels().power(powers_.data(), count, alpha_, powers_.data());
    for (int64_t i = 0; i < count; ++i) {
      const double leaf = powers_[static_cast<size_t>(i)];
      leaves_[static_cast<size_t>(i)] = static_cast<float>(leaf > 0.0 ? std::max(leaf, kSmallest) : 0.0);
    }
  }

  // Takes ids out. The sums above them stay as they were until refresh_evicted(), or until their slots are taken again,
  // as they are in a full ring.
  void evict(const int64_t* ids, int64_t count) {
    evicted_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = slots_.find(ids[i]);
      evicted_[static_cast<size_t>(i)] = slot;
      tree_.clear_leaf(slot);
    }
    slots_.erase(ids, count);
  }

  void refresh_evicted() {
    if (evicted_.size() > work_.size() || !std::equal(evicted_.begin(), evicted_.end(), work_.begin())) {
      tree_.refresh(evicted_.data(), static_cast<int64_t>(evicted_.size()));
    }
    evicted_.clear();
  }

  void draw_slots(int64_t count, bool stratified, double* masses, int64_t* slots) {
    const double all = total();
    const double share = all / static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i) {
      const double u = random_.uniform();
      masses[i] = stratified ? (static_cast<double>(i) + u) * share : u * all;
    }
    tree_.locate(masses, count, slots);
  }

  // Draws of which repeated ones are dropped are successive draws without replacement. Each round takes what it drew
  // out of the tree, so that the next draws from the rest and every round brings at least one; at the end the leaves
  // return.
  void draw_distinct(int64_t count, const Draw& out) {
    std::vector<float> leaves(static_cast<size_t>(count));
    int64_t drawn = 0;
    while (drawn < count) {
      const int64_t start = drawn;
      draw_slots(count - drawn, false, out.weights, out.slots + drawn);
      for (int64_t i = start; i < count; ++i) {
        const int64_t slot = out.slots[i];
        const float leaf = tree_.leaf(slot);
        if (leaf == 0.0f) continue;  // drawn before
        tree_.clear_leaf(slot);
        leaves[static_cast<size_t>(drawn)] = leaf;
        out.slots[drawn++] = slot;
      }
      tree_.refresh(out.slots + start, drawn - start);
    }
    tree_.write(out.slots, leaves.data(), count);
  }

  int64_t draw_all(const Draw& out) {
    int64_t count = 0;
    for (int64_t id : slots_.ids()) {
      const int64_t slot = slots_.find(id);
      if (tree_.leaf(slot) > 0.0f) out.slots[count++] = slot;
    }
    return count;
  }

  // P(i) = leaf / total; w = (N P(i))^-beta over the largest such = (smallest leaf / leaf)^beta.
  void weigh(int64_t count, const DrawRule& rule, const Draw& out) {
    double smallest = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < count; ++i) {
      out.probabilities[i] = tree_.leaf(out.slots[i]);
      smallest = std::min(smallest, out.probabilities[i]);
      out.ids[i] = slots_.id_at(out.slots[i]);
    }
    if (rule.over_buffer) smallest = tree_.smallest_positive();
    for (int64_t i = 0; i < count; ++i) out.weights[i] = smallest / out.probabilities[i];
    kernels().power(out.weights, count, rule.beta, out.weights);
    const double all = total();
    for (int64_t i = 0; i < count; ++i) out.probabilities[i] /= all;
  }

  int64_t capacity_;
  double alpha_;
  Random random_;
  Slots slots_;
  SumTree tree_;

  // Room that is used again, so that a call allocates nothing once the largest batch has been seen.
  std::vector<double> errors_;
  std::vector<double> powers_;
  std::vector<float> leaves_;
  std::vector<int64_t> work_;
  std::vector<int64_t> evicted_;
};

}  // namespace relive
