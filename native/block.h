// The memory of one draw: ids, slots, probabilities and weights, then the fields of array rows, one array after the
// other.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace relive {

// Python sees it through the buffer protocol as bytes, and makes arrays of its parts only when somebody looks: making
// an array for each part would take longer than a small draw.
class Block {
 public:
  static constexpr int64_t kHeadBytes = 4 * 8;  // of one item: id, slot, probability, weight

  Block(int64_t count, int64_t bytes) : count_(count), bytes_(bytes) {
    const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
    memory_.reset(static_cast<char*>(std::aligned_alloc(64, rounded == 0 ? 64 : rounded)));
    if (!memory_) throw std::bad_alloc();
  }

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }
  char* data() const { return memory_.get(); }

  int64_t* ids() const { return words(0); }
  int64_t* slots() const { return words(1); }
  double* probabilities() const { return reinterpret_cast<double*>(words(2)); }
  double* weights() const { return reinterpret_cast<double*>(words(3)); }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  int64_t* words(int64_t part) const { return reinterpret_cast<int64_t*>(memory_.get()) + part * count_; }

  int64_t count_;
  int64_t bytes_;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace relive
