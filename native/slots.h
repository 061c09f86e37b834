// Which experience lives in which slot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "id_map.h"

namespace relive {

// Ids are given in increasing order and never again. While they are contiguous and leave in the order in which they
// came (first in, first out), id i lives in slot i modulo the capacity, and nothing is stored for an item. The first id
// that skips a number or leaves out of order turns the ring into tables, about 60 bytes an item, for good.
class Slots {
 public:
  explicit Slots(int64_t capacity) : capacity_(capacity) {}

  int64_t size() const { return size_; }
  int64_t next_id() const { return next_id_; }
  bool is_ring() const { return ring_; }

  // The slot of `id`, or -1 when it is not stored. O(1).
  int64_t find(int64_t id) const {
    if (!ring_) return id < 0 ? -1 : slot_of_.find(id);
    if (id < first_ || id >= first_ + size_) return -1;
    return ring_slot(id - first_);
  }

  // The id in a slot that is in use. O(1).
  int64_t id_at(int64_t slot) const {
    if (!ring_) return id_of_[static_cast<size_t>(slot)];
    const int64_t distance = slot - first_slot_;
    return first_ + (distance < 0 ? distance + capacity_ : distance);
  }

  // The slot of the k-th oldest, while `is_ring()`. O(1).
  int64_t ring_slot(int64_t k) const {
    const int64_t slot = first_slot_ + k;
    return slot < capacity_ ? slot : slot - capacity_;
  }

  // All stored ids, oldest first. O(size).
  std::vector<int64_t> ids() const {
    std::vector<int64_t> result;
    result.reserve(static_cast<size_t>(size_));
    if (ring_) {
      for (int64_t k = 0; k < size_; ++k) result.push_back(first_ + k);
    } else {
      for (int64_t id : order_) {
        if (slot_of_.find(id) >= 0) result.push_back(id);
      }
    }
    return result;
  }

  // The `count` oldest ids; count <= size(). O(count), amortised.
  std::vector<int64_t> oldest(int64_t count) {
    std::vector<int64_t> result;
    result.reserve(static_cast<size_t>(count));
    if (ring_) {
      for (int64_t k = 0; k < count; ++k) result.push_back(first_ + k);
      return result;
    }
    while (!order_.empty() && slot_of_.find(order_.front()) < 0) order_.pop_front();
    for (auto id = order_.begin(); static_cast<int64_t>(result.size()) < count; ++id) {
      if (slot_of_.find(*id) >= 0) result.push_back(*id);
    }
    return result;
  }

  // The slots that `count` insertions would get after the stored `victims` have left, in order.
  std::vector<int64_t> propose(const int64_t* victims, int64_t victim_count, int64_t count) const {
    std::vector<int64_t> result;
    result.reserve(static_cast<size_t>(count));
    if (ring_ && are_oldest(victims, victim_count)) {
      // Behind the newest one; an empty ring starts anew at the next id.
      const int64_t start = victim_count == size_ ? next_id_ : first_slot_ + size_;
      for (int64_t k = 0; k < count; ++k) result.push_back((start + k) % capacity_);
      return result;
    }
    for (int64_t i = 0; i < std::min(count, victim_count); ++i) result.push_back(find(victims[i]));
    std::vector<int64_t> ring_free;
    if (ring_) ring_free = free_of_ring();
    const std::vector<int64_t>& free = ring_ ? ring_free : free_;
    for (size_t i = free.size(); static_cast<int64_t>(result.size()) < count; --i) result.push_back(free[i - 1]);
    return result;
  }

  // Takes ids out; each must be stored, and no id twice.
  void erase(const int64_t* ids, int64_t count) {
    if (ring_ && are_oldest(ids, count)) {
      first_ += count;
      size_ -= count;
      first_slot_ = (first_slot_ + count) % capacity_;
      return;
    }
    if (ring_) make_tables();
    for (int64_t i = count - 1; i >= 0; --i) {  // backwards: the first one's slot is the first to be taken again
      const int64_t slot = slot_of_.find(ids[i]);
      slot_of_.erase(ids[i]);
      id_of_[static_cast<size_t>(slot)] = -1;
      free_.push_back(slot);
    }
    size_ -= count;
  }

  // Puts a new id in and returns its slot. It must be at least next_id(), and size() less than the capacity.
  int64_t insert(int64_t id) {
    if (ring_ && size_ == 0) {
      first_ = id;
      first_slot_ = id % capacity_;
    } else if (ring_ && id != first_ + size_) {
      make_tables();
    }
    next_id_ = id + 1;
    if (ring_) return ring_slot(size_++);
    const int64_t slot = free_.back();
    free_.pop_back();
    id_of_[static_cast<size_t>(slot)] = id;
    slot_of_.insert(id, slot);
    // Ids that left from the middle stay in the order until it is swept, at most once for each that came.
    if (static_cast<int64_t>(order_.size()) > 2 * size_ + 64) {
      order_.erase(std::remove_if(order_.begin(), order_.end(), [&](int64_t i) { return slot_of_.find(i) < 0; }),
                   order_.end());
    }
    order_.push_back(id);
    ++size_;
    return slot;
  }

  // No id below `next` is given any more.
  void skip_to(int64_t next) { next_id_ = std::max(next_id_, next); }

  // The free slots, the one that is taken next last; empty while `is_ring()`, where the next id decides.
  const std::vector<int64_t>& free() const { return free_; }

  // Restores an empty ring from a checkpoint.
  void restore_ring(int64_t first, int64_t count) {
    first_ = first;
    first_slot_ = first % capacity_;
    size_ = count;
    next_id_ = first + count;
  }

  // Restores empty tables from a checkpoint: ids increasing, each with its slot, and the free slots in their order.
  void restore_tables(const int64_t* ids, const int64_t* slots, int64_t count, const int64_t* free,
                      int64_t free_count) {
    ring_ = false;
    id_of_.assign(static_cast<size_t>(capacity_), -1);
    free_.assign(free, free + free_count);
    for (int64_t i = 0; i < count; ++i) {
      id_of_[static_cast<size_t>(slots[i])] = ids[i];
      slot_of_.insert(ids[i], slots[i]);
      order_.push_back(ids[i]);
    }
    size_ = count;
    if (count > 0) next_id_ = ids[count - 1] + 1;
  }

  int64_t bytes() const {
    return static_cast<int64_t>((id_of_.size() + free_.size() + order_.size()) * sizeof(int64_t)) + slot_of_.bytes();
  }

 private:
  bool are_oldest(const int64_t* ids, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] != first_ + i) return false;
    }
    return true;
  }

  std::vector<int64_t> free_of_ring() const {
    std::vector<int64_t> free;
    for (int64_t k = capacity_ - 1; k >= size_; --k) free.push_back(ring_slot(k));
    return free;
  }

  void make_tables() {
    free_ = free_of_ring();
    id_of_.assign(static_cast<size_t>(capacity_), -1);
    for (int64_t k = 0; k < size_; ++k) {
      const int64_t id = first_ + k;
      const int64_t slot = ring_slot(k);
      id_of_[static_cast<size_t>(slot)] = id;
      slot_of_.insert(id, slot);
      order_.push_back(id);
    }
    ring_ = false;
  }

  int64_t capacity_;
  int64_t size_ = 0;
  int64_t next_id_ = 0;
  bool ring_ = true;
  int64_t first_ = 0;       // oldest id, while a ring
  int64_t first_slot_ = 0;  // its slot: first_ modulo the capacity

  // Once no longer a ring:
  std::vector<int64_t> id_of_;  // by slot; -1: free
  std::vector<int64_t> free_;   // a stack
  std::deque<int64_t> order_;   // by insertion; may hold ids that have left
  IdMap slot_of_;
};

}  // namespace relive
