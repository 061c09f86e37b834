// A hash map from experience ids to slots: open addressing, linear probing, deletion without tombstones.
#pragma once

#include <cstdint>
#include <vector>

namespace relive {

// Ids are not negative. At most half full, so that a look-up touches one or two cache lines. O(1).
class IdMap {
 public:
  int64_t size() const { return size_; }

  // The slot of `id`, or -1.
  int64_t find(int64_t id) const {
    if (size_ == 0) return -1;
    for (size_t at = home(id);; at = next(at)) {
      if (entries_[at].id == id) return entries_[at].slot;
      if (entries_[at].id == kEmpty) return -1;
    }
  }

  // `id` must be absent.
  void insert(int64_t id, int64_t slot) {
    if (2 * (static_cast<size_t>(size_) + 1) > entries_.size()) grow();
    place({id, slot});
    ++size_;
  }

  // An absent id changes nothing.
  void erase(int64_t id) {
    if (size_ == 0) return;
    size_t hole = home(id);
    for (; entries_[hole].id != id; hole = next(hole)) {
      if (entries_[hole].id == kEmpty) return;
    }
    --size_;
    // Entries behind the hole that could have stood in it move up, so that every probe still finds an unbroken run.
    for (size_t at = next(hole); entries_[at].id != kEmpty; at = next(at)) {
      const size_t distance_to_home = (at - home(entries_[at].id)) & mask_;
      if (distance_to_home >= ((at - hole) & mask_)) {
        entries_[hole] = entries_[at];
        hole = at;
      }
    }
    entries_[hole].id = kEmpty;
  }

  int64_t bytes() const { return static_cast<int64_t>(entries_.size() * sizeof(Entry)); }

 private:
  static constexpr int64_t kEmpty = -1;
  struct Entry {
    int64_t id = kEmpty;
    int64_t slot = 0;
  };

  size_t home(int64_t id) const { return (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u >> 20) & mask_; }
  size_t next(size_t at) const { return (at + 1) & mask_; }

  void place(Entry entry) {
    size_t at = home(entry.id);
    while (entries_[at].id != kEmpty) at = next(at);
    entries_[at] = entry;
  }

  void grow() {
    std::vector<Entry> old(entries_.empty() ? 16 : 2 * entries_.size());
    old.swap(entries_);
    mask_ = entries_.size() - 1;
    for (const Entry& entry : old) {
      if (entry.id != kEmpty) place(entry);
    }
  }

  std::vector<Entry> entries_;
  size_t mask_ = 0;
  int64_t size_ = 0;
};

}  // namespace relive
