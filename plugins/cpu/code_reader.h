// Block readers of codes: turn a block of coded tokens into fp32 directions, whatever the segments
// and the layout. Magnitudes stay outside: they multiply scores and probabilities.
#pragma once

#include "cpu/elements.h"

namespace minicache {
namespace MINICACHE_ISA {

// Tokens [begin, end) of the block whose codes start at `data` (a multiple of 64 tokens).
struct CodeBlock {
  const char* data;
  int32_t begin;
  int32_t end;
};

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

static inline float Middle(int bits) { return bits == 16 ? 0.f : (float)((1 << bits) - 1) * 0.5f; }

static inline int SegmentBytes(const CodeSegment& s) { return s.count * s.bits / 8; }

// Whether lanes can run along the bytes of every segment, and along tokens in fours of bytes. Rows
// with room behind them take whole vectors where a segment ends amidst one: its padding is loaded
// too, and what that writes belongs to the next plane or segment, or to the room, and is written
// after it.
static inline bool IsVectorisable(const CodeFormat& format) {
  for (int i = 0; i < format.segment_count; i++) {
    const CodeSegment& s = format.segments[i];
    const int unit = s.bits == 16 ? 2 * kLanes : kLanes;
    const bool whole = SegmentBytes(s) % unit == 0 || (s.bits != 16 && format.room >= kLanes - 1);
    if (!whole || s.first_byte % 4 != 0) return false;
  }
  return true;
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

// Byte j of token t, in either layout: for the shapes that vectors do not fit, and for tails.
static inline uint8_t ByteAt(const CodeFormat& f, bool values, const char* block, int t, int j) {
  const int64_t bytes = f.bytes;
  if (f.layout == Layout::kRow) return (uint8_t)block[t * bytes + j];
  if (values) return (uint8_t)block[t / 4 * 4 * bytes + j * 4 + t % 4];
  return (uint8_t)block[t / 16 * 16 * bytes + j / 4 * 64 + t % 16 * 4 + j % 4];
}

static inline void ReadToken(const CodeFormat& f, bool values, const char* block, int t,
                             float* out) {
  for (int i = 0; i < f.segment_count; i++) {
    const CodeSegment& s = f.segments[i];
    for (int c = 0; c < s.count; c++) {
      float* target = out + s.first_component + c;
      if (s.bits == 16) {
        const int j = s.first_byte + 2 * c;
        const int low = ByteAt(f, values, block, t, j), high = ByteAt(f, values, block, t, j + 1);
        *target = HalfToFloat((uint16_t)(low | high << 8));
      } else {
        const int span = SegmentBytes(s), plane = c / span;
        const int byte = ByteAt(f, values, block, t, s.first_byte + c - plane * span);
        *target = (float)((byte >> (s.bits * plane)) & ((1 << s.bits) - 1)) - Middle(s.bits);
      }
    }
  }
}

template <int kBits>
static inline void ReadRowSegment(const CodeSegment& s, const char* row, float* out) {
  const char* bytes = row + s.first_byte;
  float* target = out + s.first_component;
  if constexpr (kBits == 16) {
    Widen<Float16>(bytes, s.count, target);
  } else {
    using B = Bits<kBits>;
    const int span = s.count / B::kPlanes;
    for (int p = 0; p < B::kPlanes; p++) {
      for (int j = 0; j < span; j += kLanes) {
        Store(target + j + p * span, MidRise<kBits>(LoadBytes(bytes + j), kBits * p));
      }
    }
  }
}

template <int kBits>
static inline void ReadQuadSegment(const CodeSegment& s, const char* quad, float* out,
                                   int64_t stride) {
  const char* bytes = quad + s.first_byte * 4;
  float* target = out + s.first_component;
  if constexpr (kBits == 16) {
    for (int c = 0; c < s.count; c += kLanes) {
      Floats v[4];
      LoadHalfQuad(bytes + c * 8, v);
      for (int t = 0; t < 4; t++) Store(target + t * stride + c, v[t]);
    }
  } else {
    using B = Bits<kBits>;
    const int span = s.count / B::kPlanes;
    for (int p = 0; p < B::kPlanes; p++) {
      for (int j = 0; j < span; j += kLanes) {
        const Words x = LoadWords(bytes + j * 4);
        for (int t = 0; t < 4; t++) {
          Store(target + t * stride + j + p * span, MidRise<kBits>(x, 8 * t + kBits * p));
        }
      }
    }
  }
}

// [tokens, stride] directions of a block. Writes whole quads of values tiles.
static inline void ReadCodes(const CodeFormat& f, bool values, const CodeBlock& block, float* out,
                             int64_t stride) {
  const bool vector = IsVectorisable(f);
  if (vector && f.layout == Layout::kTile && values) {
    for (int t = block.begin / 4 * 4; t < block.end; t += 4) {
      const char* quad = block.data + (int64_t)t * f.bytes;
      float* target = out + t * stride;
      for (int i = 0; i < f.segment_count; i++) {
        const CodeSegment& s = f.segments[i];
        if (s.bits == 16) ReadQuadSegment<16>(s, quad, target, stride);
        if (s.bits == 8) ReadQuadSegment<8>(s, quad, target, stride);
        if (s.bits == 4) ReadQuadSegment<4>(s, quad, target, stride);
        if (s.bits == 2) ReadQuadSegment<2>(s, quad, target, stride);
      }
    }
    return;
  }
  for (int t = block.begin; t < block.end; t++) {
    float* target = out + t * stride;
    if (!vector || f.layout == Layout::kTile) {
      ReadToken(f, values, block.data, t, target);
      continue;
    }
    for (int i = 0; i < f.segment_count; i++) {
      const CodeSegment& s = f.segments[i];
      const char* row = block.data + (int64_t)t * f.bytes;
      if (s.bits == 16) ReadRowSegment<16>(s, row, target);
      if (s.bits == 8) ReadRowSegment<8>(s, row, target);
      if (s.bits == 4) ReadRowSegment<4>(s, row, target);
      if (s.bits == 2) ReadRowSegment<2>(s, row, target);
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
