// Loads of packed components into vectors of fp32, for every width and place of a code.
#pragma once

#include "cpu/elements.h"

namespace minicache {
namespace MINICACHE_ISA {

template <int kBits>
struct Bits {
  static constexpr int kPlanes = kBits < 8 ? 8 / kBits : 1;
  static constexpr float kMiddle = kBits == 16 ? 0.f : ((1 << (kBits & 15)) - 1) * 0.5f;
};

// The mid-rise values of the kBits-wide fields at bit `shift` of each lane: k - (2^kBits - 1) / 2.
// The field becomes the mantissa of 2^22 + k, whose last bit counts halves, so the difference is
// exact and costs what a conversion to float would.
template <int kBits>
static inline __attribute__((always_inline)) Floats MidRise(Words x, int shift) {
  const Words field = shift == 0 ? x << 1 : x >> (shift - 1);
  constexpr uint32_t kMask = ((1u << (kBits & 15)) - 1) << 1, kBias = 0x4a800000;
#if defined(__AVX512F__)
  const __m512i mask = _mm512_set1_epi32((int)kMask), bias = _mm512_set1_epi32((int)kBias);
  const Words bits = (Words)_mm512_ternarylogic_epi32((__m512i)field, mask, bias, 0xea);
#else
  const Words bits = (field & kMask) | kBias;
#endif
  return (Floats)bits - Set(4194304.f + Bits<kBits>::kMiddle);
}

// The low and the high half of each lane.
static inline void SplitHalves(Words x, Floats* low, Floats* high) {
#if defined(__AVX512F__)
  *low = HalvesToFloats(x);  // the conversion truncates by itself
  *high = HalvesToFloats(x >> 16);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)(x & 0xffffu), (__m256i)(x >> 16));
  const __m256i halves = _mm256_permute4x64_epi64(packed, 0xd8);
  *low = (Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  *high = (Floats)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
#else
  *low = HalvesToFloats(x & 0xffffu);
  *high = HalvesToFloats(x >> 16);
#endif
}

// The first `count` of kLanes words, zeros after them; nothing behind them is touched.
static inline Words LoadFirstWords(const char* p, int count) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_loadu_epi32((__mmask16)((1u << count) - 1), p);
#elif defined(__AVX2__)
  return (Words)_mm256_maskload_epi32((const int*)p, (__m256i)(LaneIndex() < count));
#else
  Words v = {};
  memcpy(&v, p, (size_t)count * sizeof(uint32_t));
  return v;
#endif
}

static inline Words LoadBytes(const char* p) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  Words v;
  for (int i = 0; i < kLanes; i++) v[i] = (uint8_t)p[i];
  return v;
#endif
}

// As above where only `count` bytes belong to the segment: the code may end with them.
static inline Words LoadBytes(const char* p, int count) {
  if (count >= kLanes) return LoadBytes(p);
  char bytes[kLanes] = {};
  memcpy(bytes, p, (size_t)count);
  return LoadBytes(bytes);
}

// A run of kLanes bytes of the four tokens of a values tile, of which `count` belong to the
// segment.
static inline Words LoadBytesOfQuad(const char* p, int count) {
  return count >= kLanes ? LoadWords(p) : LoadFirstWords(p, count);
}

// Values of a tile hold the 4 tokens of a byte side by side, so halves arrive split in two bytes:
// kLanes components of the four tokens from 8 * kLanes bytes.
static inline void LoadHalfQuad(const char* p, Floats out[4]) {
#if defined(__AVX512F__)
  const __m512i pair =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
  const __m512i a = _mm512_shuffle_epi8(_mm512_loadu_si512(p), pair);
  const __m512i b = _mm512_shuffle_epi8(_mm512_loadu_si512(p + 64), pair);
  // Lane i < 16: component i of the even token; lane 16 + i: of the odd one.
  alignas(64) static const uint16_t kPick[32] = {0,  4,  8,  12, 16, 20, 24, 28, 32, 36, 40,
                                                 44, 48, 52, 56, 60, 1,  5,  9,  13, 17, 21,
                                                 25, 29, 33, 37, 41, 45, 49, 53, 57, 61};
  const __m512i pick = _mm512_load_si512(kPick);
  const __m512i low = _mm512_permutex2var_epi16(a, pick, b);
  const __m512i high =
      _mm512_permutex2var_epi16(a, _mm512_add_epi16(pick, _mm512_set1_epi16(2)), b);
  out[0] = (Floats)_mm512_cvtph_ps(_mm512_castsi512_si256(low));
  out[1] = (Floats)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(low, 1));
  out[2] = (Floats)_mm512_cvtph_ps(_mm512_castsi512_si256(high));
  out[3] = (Floats)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(high, 1));
#elif defined(__AVX2__)
  // Pairs of components of one token side by side, then fours, then all eight.
  const __m256i pair = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m128i* parts = (const __m128i*)p;
  const __m256i a = _mm256_shuffle_epi8(
      _mm256_set_m128i(_mm_loadu_si128(parts + 2), _mm_loadu_si128(parts)), pair);
  const __m256i b = _mm256_shuffle_epi8(
      _mm256_set_m128i(_mm_loadu_si128(parts + 3), _mm_loadu_si128(parts + 1)), pair);
  const __m256i low = _mm256_permute4x64_epi64(_mm256_unpacklo_epi32(a, b), 0xd8);
  const __m256i high = _mm256_permute4x64_epi64(_mm256_unpackhi_epi32(a, b), 0xd8);
  out[0] = (Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(low));
  out[1] = (Floats)_mm256_cvtph_ps(_mm256_extracti128_si256(low, 1));
  out[2] = (Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(high));
  out[3] = (Floats)_mm256_cvtph_ps(_mm256_extracti128_si256(high, 1));
#else
  const Words a = LoadWords(p), b = LoadWords(p + 4 * kLanes);
  const Words low = __builtin_shufflevector(a, b, 0, 2, 4, 6);
  const Words high = __builtin_shufflevector(a, b, 1, 3, 5, 7);
  for (int t = 0; t < 4; t++) {
    out[t] = HalvesToFloats(((low >> (8 * t)) & 255u) | (((high >> (8 * t)) & 255u) << 8));
  }
#endif
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
