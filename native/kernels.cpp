// Compiles kernels.inc twice. The AVX2 copy is made under a target of its own instead of a compiler flag for the file,
// so that no function outside it can carry an instruction that other processors lack.
#include "kernels.h"

#include <cstdlib>
#include <cstring>

#define INLINE static inline __attribute__((always_inline))

namespace relive {

// Which of 16 children holds the mass: the first whose cumulative sum lies above it and whose own sum is positive, else
// the last positive one. The second half covers a mass equal to the total, and sums that were added in another order.
INLINE unsigned first_or_last(unsigned above, unsigned positive) {
  const unsigned candidates = above & positive;
  if (candidates != 0) return static_cast<unsigned>(__builtin_ctz(candidates));
  return positive != 0 ? 31u - static_cast<unsigned>(__builtin_clz(positive)) : 0u;
}

namespace portable {
// clang-format off: the kernels use the lanes
#include "lanes_portable.inc"
#include "kernels.inc"
// clang-format on
}  // namespace portable

static const Kernels kPortable{"portable", portable::locate, portable::refresh, portable::total, portable::power};

#if defined(__x86_64__)
}  // namespace relive
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi")
#endif
namespace relive {
namespace avx2 {
// clang-format off: the kernels use the lanes
#include "lanes_avx2.inc"
#include "kernels.inc"
// clang-format on
}  // namespace avx2
}  // namespace relive
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
namespace relive {

static const Kernels kAvx2{"avx2", avx2::locate, avx2::refresh, avx2::total, avx2::power};

static bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
}
#endif

static const Kernels* find(const char* name) {
#if defined(__x86_64__)
  if (std::strcmp(name, "avx2") == 0) return has_avx2() ? &kAvx2 : nullptr;
#endif
  return std::strcmp(name, "portable") == 0 ? &kPortable : nullptr;
}

static const Kernels* choose() {
  const char* wanted = std::getenv("RELIVE_KERNELS");
  if (wanted != nullptr) {
    if (const Kernels* found = find(wanted)) return found;
  }
  const Kernels* fast = find("avx2");
  return fast != nullptr ? fast : &kPortable;
}

static const Kernels* current = choose();

const Kernels& kernels() { return *current; }

bool use_kernels(const char* name) {
  const Kernels* found = find(name);
  if (found == nullptr) return false;
  current = found;
  return true;
}

}  // namespace relive
