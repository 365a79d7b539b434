// Element types of vectors in memory: each loads kLanes elements as floats.
#pragma once

#include "cpu/simd.h"
#include "minicache/attend.h"

namespace minicache {
namespace MINICACHE_ISA {

struct Float32 {
  static constexpr int kBytes = 4;
  static inline Floats Lanes(const char* p) {
    Floats v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  static inline float One(const char* p) {
    float x;
    memcpy(&x, p, 4);
    return x;
  }
  static inline void PutOne(char* p, float x) { memcpy(p, &x, 4); }
};

struct Float16 {
  static constexpr int kBytes = 2;
  static inline Floats Lanes(const char* p) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    uint16_t h[kLanes];
    memcpy(h, p, sizeof h);
    return HalvesToFloats(Words{h[0], h[1], h[2], h[3]});
#endif
  }
  static inline float One(const char* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return HalfToFloat(h);
  }
  static inline void PutOne(char* p, float x) {
    const uint16_t h = FloatToHalf(x);
    memcpy(p, &h, 2);
  }
};

struct Bfloat16 {
  static constexpr int kBytes = 2;
  static inline Floats Lanes(const char* p) {
    uint16_t h[kLanes];
    memcpy(h, p, sizeof h);
    Words w;
    for (int i = 0; i < kLanes; i++) w[i] = h[i];
    return (Floats)(w << 16);
  }
  static inline float One(const char* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return BitsToFloat((uint32_t)h << 16);
  }
  static inline void PutOne(char* p, float x) {
    const uint32_t bits = FloatToBits(x);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint16_t h = (uint16_t)(nan ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    memcpy(p, &h, 2);
  }
};

static inline int64_t ElementBytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

template <class E>
static inline void Widen(const char* source, int64_t n, float* target) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(target + i, E::Lanes(source + i * E::kBytes));
  for (; i < n; i++) target[i] = E::One(source + i * E::kBytes);
}

static inline void ToFloat(Dtype dtype, const char* source, int64_t n, float* target) {
  if (dtype == Dtype::kFloat32) return Widen<Float32>(source, n, target);
  if (dtype == Dtype::kFloat16) return Widen<Float16>(source, n, target);
  return Widen<Bfloat16>(source, n, target);
}

static inline void FromFloat(const float* source, int64_t n, Dtype dtype, char* target) {
  if (dtype == Dtype::kFloat32) {
    memcpy(target, source, (size_t)n * 4);
    return;
  }
  int64_t i = 0;
  if (dtype == Dtype::kBfloat16) {
    for (; i < n; i++) Bfloat16::PutOne(target + 2 * i, source[i]);
    return;
  }
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(source + i);
    _mm256_storeu_si256((__m256i*)(target + 2 * i), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(source + i);
    _mm_storeu_si128((__m128i*)(target + 2 * i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < n; i++) Float16::PutOne(target + 2 * i, source[i]);
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
