// The buffer's own random numbers: one stream a buffer, its whole state four words that a checkpoint can hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace relive {

// splitmix64 (Steele, Lea, Flood 2014): turns any 64-bit seed into well-mixed words.
inline uint64_t splitmix64(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// xoshiro256++ (Blackman, Vigna 2021), period 2^256 - 1.
class Random {
 public:
  using State = std::array<uint64_t, 4>;

  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = splitmix64(seed);
  }

  uint64_t next() {
    const uint64_t result = rotate(state_[0] + state_[3], 23) + state_[0];
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  // Uniform in [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  // Uniform in 0 ... bound - 1, without bias (Lemire 2019). `bound` must be positive.
  uint64_t below(uint64_t bound) {
    unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<unsigned __int128>(next()) * bound;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

  // A stream of its own for worker `number`: a function of this state and the number alone, so that worker k draws the
  // same in every run and no two workers share draws.
  Random split(uint64_t number) const {
    uint64_t mix = number + 1;
    State state;
    for (std::size_t i = 0; i < state.size(); ++i) {
      mix ^= state_[i];
      state[i] = splitmix64(mix);
    }
    return Random(state);
  }

  explicit Random(const State& state) : state_(state) {}
  const State& state() const { return state_; }

 private:
  static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

  State state_{};
};

}  // namespace relive
