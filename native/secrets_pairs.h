// A sieve for pairs of neighbouring bytes, sixteen positions at a time: it lets every marked pair through, and few others.
//
// A byte is looked up by its lower and by its upper half, which one instruction (pshufb) does for sixteen bytes. A pair is
// marked if some bucket of eight holds both halves of both its bytes; so a bucket lets through more pairs than were put
// into it, and which goes into which is chosen such that in ordinary text those are rare. Who is let through is looked up
// exactly afterwards. Where the instruction is missing, everybody is looked up exactly.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <tmmintrin.h>
#define RELIVE_HAS_PAIR_FILTER 1
#endif

namespace {

class PairFilter {
 public:
  void add(std::uint8_t first, std::uint8_t second) {
    double least = -1;
    int best = 0;
    for (int bucket = 0; bucket < 8; ++bucket) {
      const auto bit = static_cast<std::uint8_t>(1 << bucket);
      const double now = lets_through(bit);
      PairFilter with = *this;
      with.put(first, second, bit);
      const double more = with.lets_through(bit) - now;
      if (least < 0 || more < least) least = more, best = bucket;
    }
    put(first, second, static_cast<std::uint8_t>(1 << best));
  }

#ifdef RELIVE_HAS_PAIR_FILTER
  static bool supported() { return __builtin_cpu_supports("ssse3"); }

  // One bit for each of the pairs that begin at the sixteen bytes from `bytes` on; reads one byte more.
  __attribute__((target("ssse3"))) unsigned marked(const std::uint8_t* bytes) const {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 1));
    const __m128i buckets = _mm_and_si128(look_up(first, low_[0], high_[0]), look_up(second, low_[1], high_[1]));
    const __m128i none = _mm_cmpeq_epi8(buckets, _mm_setzero_si128());
    return ~static_cast<unsigned>(_mm_movemask_epi8(none)) & 0xffff;
  }
#endif

 private:
  using Half = std::array<std::uint8_t, 16>;
  alignas(16) std::array<Half, 2> low_{}, high_{};  // of the first and of the second byte; a bit for each bucket

  void put(std::uint8_t first, std::uint8_t second, std::uint8_t bit) {
    low_[0][first & 15] |= bit, high_[0][first >> 4] |= bit;
    low_[1][second & 15] |= bit, high_[1][second >> 4] |= bit;
  }

  // How many of a thousand pairs of ordinary text a bucket lets through, roughly, taking the bytes as independent.
  double lets_through(std::uint8_t bit) const {
    double share[2] = {0, 0};
    for (int byte = 0; byte < 256; ++byte)
      for (int i = 0; i < 2; ++i)
        if (low_[i][byte & 15] & high_[i][byte >> 4] & bit) share[i] += frequency(byte);
    return share[0] * share[1] * 1000;
  }

  // Share of a byte in English JSON, roughly.
  static double frequency(int byte) {
    static constexpr char kCommon[] = " etaoinsrhld\"cumgpfyw,.b:vk_-0123456789jxqz";
    const char* found = byte ? std::strchr(kCommon, byte) : nullptr;
    if (found) return 0.16 / static_cast<double>(found - kCommon + 2);
    return byte > 32 && byte < 127 ? 0.002 : 0.0003;
  }

#ifdef RELIVE_HAS_PAIR_FILTER
  __attribute__((target("ssse3"))) static __m128i look_up(__m128i bytes, const Half& low, const Half& high) {
    const __m128i half = _mm_set1_epi8(15);
    const __m128i lower = _mm_and_si128(bytes, half), upper = _mm_and_si128(_mm_srli_epi16(bytes, 4), half);
    return _mm_and_si128(_mm_shuffle_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(low.data())), lower),
                         _mm_shuffle_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(high.data())), upper));
  }
#endif
};

}  // namespace
