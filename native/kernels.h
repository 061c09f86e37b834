// The few loops that decide the speed, compiled once for AVX2 and once for any processor, chosen when the module loads.
//
// Both versions add in the same order and never contract a multiplication and an addition, so that a seed gives the
// same draws on every machine.
#pragma once

#include <cstdint>

namespace relive {

constexpr int kShift = 4;                         // a node has 16 children:
constexpr int64_t kWidth = int64_t{1} << kShift;  // one cache line of leaves, two of sums

// The arrays of a `SumTree`. sums[0] holds one sum for each group of 16 leaves, sums[l + 1] one for each group of 16
// entries of sums[l]; sums[depth - 1] has at most 16 entries, and is the root. Arrays are padded with zeros to whole
// groups.
struct TreeView {
  float* leaves;
  double* const* sums;
  const int64_t* counts;  // entries in use at each level of sums
  int depth;
};

struct Kernels {
  const char* name;

  // For each mass in [0, total]: the slot whose share of the cumulative sum holds it. Never a slot whose leaf is 0,
  // unless all are. `masses` is overwritten. O(log16 capacity) each; draws descend together, so that their cache misses
  // overlap.
  void (*locate)(const TreeView& tree, double* masses, int64_t count, int64_t* slots);

  // Recomputes the sums above the given slots from their children, level by level.
  void (*refresh)(const TreeView& tree, const int64_t* slots, int64_t count);

  double (*total)(const TreeView& tree);

  // result[i] = x[i]^exponent for x > 0, and 0 for x = 0. Relative error below 1e-13 for normal x. In place is allowed.
  void (*power)(const double* x, int64_t count, double exponent, double* result);
};

// The kernels in use: AVX2 where the processor has it, unless the environment sets RELIVE_KERNELS=portable.
const Kernels& kernels();

// Changes the kernels for the whole process (for tests); false when `name` is unknown or the processor cannot run it.
bool use_kernels(const char* name);

}  // namespace relive
