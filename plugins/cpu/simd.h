// Vectors of kLanes floats for the instruction set that this source is compiled for.
//
// Every function lives in a namespace named after the instruction set: the linker must never merge
// an AVX-512 copy of an inline function into the baseline code.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// On loops over accumulators: only unrolled early do these live in registers alone.
#define MINICACHE_UNROLL _Pragma("GCC unroll 16")

namespace minicache {
namespace MINICACHE_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));

static inline Floats Load(const float* source) {
  Floats v;
  memcpy(&v, source, sizeof v);
  return v;
}

static inline void Store(float* target, Floats v) { memcpy(target, &v, sizeof v); }

static inline Words LoadWords(const char* source) {
  Words v;
  memcpy(&v, source, sizeof v);
  return v;
}

// Keeps the compiler from loading `v` once more at each use: loads are what products wait for.
static inline __attribute__((always_inline)) void KeepInRegister(Floats* v) {
#if defined(__AVX512F__)
  asm("" : "+v"(*v));
#elif defined(__SSE2__)
  asm("" : "+x"(*v));
#else
  asm("" : "+w"(*v));
#endif
}

static inline Floats Set(float x) { return x - Floats{}; }

static inline Floats ToFloats(Words v) { return __builtin_convertvector((Ints)v, Floats); }

static inline Floats Max(Floats a, Floats b) { return a > b ? a : b; }

static inline Floats Abs(Floats v) { return (Floats)((Ints)v & 0x7fffffff); }

static inline Ints LaneIndex() {
  Ints v;
  for (int i = 0; i < kLanes; i++) v[i] = i;
  return v;
}

static inline float Sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX2__)
  __m128 x = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

static inline float Maximum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(__AVX2__)
  __m128 x = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
#else
  float best = v[0];
  for (int i = 1; i < kLanes; i++) best = v[i] > best ? v[i] : best;
  return best;
#endif
}

static inline int32_t Sum(Ints v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)v);
#elif defined(__AVX2__)
  __m128i x =
      _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

// exp, exactly 0 below -87, so that hidden tokens add nothing, up to 87. Its relative error is
// 2e-7 + 1.5e-8 |x|, or 5e-8 |x| where multiply-adds are not fused: of softmax weights, for which
// x < 0, that is at most 1.3e-7 of the largest.
static inline Floats Exp(Floats x) {
  const Floats log2_e = Set(1.44269504f), magic = Set(12582912.f);  // 1.5 * 2^23: rounds
  const Floats rounded = x * log2_e + magic, n = rounded - magic, f = x * log2_e - n;
  Floats p = Set(1.326472725e-3f);  // 2^f, minimax in |f| <= 0.5, and 1 at 0
  p = p * f + Set(9.671512786e-3f);
  p = p * f + Set(5.550733744e-2f);
  p = p * f + Set(2.402224208e-1f);
  p = p * f + Set(6.931469776e-1f);
  p = p * f + Set(1.f);
#if defined(__AVX512F__)
  const __mmask16 alive = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.f), _CMP_NLT_UQ);
  return (Floats)_mm512_maskz_scalef_ps(alive, (__m512)p, (__m512)n);
#else
  const Floats power = (Floats)(((Ints)rounded << 23) + 0x3f800000);
  return x < Set(-87.f) ? Floats{} : p * power;
#endif
}

static inline float ScalarExp(float x) { return x < -87.f ? 0.f : __builtin_expf(x); }

// tanh through exp: absolute error 1e-7, which is what a capped score needs.
static inline Floats Tanh(Floats x) {
  const Floats most = Set(44.f);  // 1 from there on
  x = x > most ? most : x;
  return Set(1.f) - Set(2.f) / (Exp(x + x) + Set(1.f));
}

// Memory that the next step reads, fetched line by line while this one computes: the jump from keys
// to values and back is one that the hardware does not foresee.
struct Ahead {
  const char* data;
  int64_t bytes;
  inline void Fetch(int64_t line) const {
    if (line * 64 < bytes) __builtin_prefetch(data + line * 64);
  }
  // For integers, which compute for less time than a line takes to come: what lies a page further,
  // beyond which the hardware does not look, goes into the second cache, where more lines may wait.
  inline void FetchNext() {
    if (bytes <= 0) return;
    __builtin_prefetch(data);
    __builtin_prefetch(data + 4096, 0, 2);
    data += 64;
    bytes -= 64;
  }
};

static inline float BitsToFloat(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static inline uint32_t FloatToBits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static inline float HalfToFloat(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
  if ((h & 0x7c00) == 0x7c00) return BitsToFloat(sign | 0x7f800000 | rest);
  // Scaling by 2^112 moves the exponent's bias and makes subnormal halves normal.
  return BitsToFloat(sign | FloatToBits(BitsToFloat(rest) * 5.192296858534828e33f));
}

// Rounds to nearest even, like the conversion instructions.
static inline uint16_t FloatToHalf(float x) {
  const uint32_t bits = FloatToBits(x), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65520 and above
  if (rest < 0x38800000) {  // subnormal: adding 0.5 lets the adder round at the right bit
    return (uint16_t)(sign | (FloatToBits(BitsToFloat(rest) + 0.5f) - 0x3f000000));
  }
  return (uint16_t)(sign | ((rest + 0xfff + ((rest >> 13) & 1) - 0x38000000) >> 13));
}

// Halves in the low 16 bits of each lane.
static inline Floats HalvesToFloats(Words h) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)h));
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)h, (__m256i)h);
  return (Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
  const Words sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
  const Words finite = (Words)((Floats)rest * Set(5.192296858534828e33f));
  return (Floats)(sign | ((h & 0x7c00u) == 0x7c00u ? (rest | 0x7f800000u) : finite));
#endif
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
