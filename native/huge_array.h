// Zeroed arrays for the tree and the rows, aligned to cache lines, on huge pages where they are large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace relive {

// An array of `count` zeroed elements of a plain type. Memory is taken from the system only when it is first written,
// so a large capacity costs nothing until it is used. Random access to an array of many megabytes is bound by misses of
// the page table cache; pages of 2 MiB (asked for, never required) remove most of them.
template <class T>
class HugeArray {
 public:
  HugeArray() = default;

  explicit HugeArray(int64_t count) : count_(count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes < kHugePage) {
      reserved_ = (bytes + kLine - 1) / kLine * kLine;
      memory_ = std::aligned_alloc(kLine, reserved_ == 0 ? kLine : reserved_);
      if (memory_ == nullptr) throw std::bad_alloc();
      for (size_t i = 0; i < bytes; ++i) static_cast<char*>(memory_)[i] = 0;
      data_ = static_cast<T*>(memory_);
      return;
    }
    reserved_ = bytes + kHugePage;  // room to start on a page boundary
    memory_ = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) {
      memory_ = nullptr;
      throw std::bad_alloc();
    }
    mapped_ = true;
    const uintptr_t start = (reinterpret_cast<uintptr_t>(memory_) + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<T*>(start);
#ifdef MADV_HUGEPAGE
    madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  }

  ~HugeArray() {
    if (mapped_) {
      munmap(memory_, reserved_);
    } else {
      std::free(memory_);
    }
  }

  HugeArray(HugeArray&& other) noexcept { swap(other); }
  HugeArray& operator=(HugeArray&& other) noexcept {
    swap(other);
    return *this;
  }
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return count_; }
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(T)); }

 private:
  static constexpr size_t kLine = 64;
  static constexpr size_t kHugePage = size_t{2} << 20;

  void swap(HugeArray& other) {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(reserved_, other.reserved_);
    std::swap(mapped_, other.mapped_);
  }

  void* memory_ = nullptr;
  T* data_ = nullptr;
  int64_t count_ = 0;
  size_t reserved_ = 0;
  bool mapped_ = false;
};

}  // namespace relive
