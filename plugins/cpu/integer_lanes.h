// Integer multiply-add over the fields of codes: the few operations that instruction sets differ
// in.
//
// A lane holds four bytes of codes: of one token (keys), or of four tokens (values). Two forms of
// what they are multiplied with:
//   pairs  two int16 per lane; a lane's even bytes meet one word, its odd bytes another one
//   bytes  four int8 (or uint8) per lane, one word; half the work at a quarter of a percent of
//   error
#pragma once

#include "cpu/code_reader.h"

namespace minicache {
namespace MINICACHE_ISA {

typedef uint16_t Halves __attribute__((vector_size(kLanes * 4)));

#if defined(__AVX512VNNI__)
constexpr bool kHasByteDots = true;
#else
constexpr bool kHasByteDots = false;
#endif

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

static inline Ints Broadcast(int32_t x) { return x - Ints{}; }

// Even (half = 0) or odd bytes' fields at bit `shift` as int16: values 0 .. 2^kBits - 1.
template <int kBits>
static inline __attribute__((always_inline)) Words PairField(Words x, int shift, int half) {
  const int total = shift + 8 * half;
  const Halves field = total == 0 ? (Halves)x : (Halves)x >> total;
  if (kBits + total == 16) return (Words)field;  // the shift has cleared the rest
  return (Words)(field & (uint16_t)((1 << kBits) - 1));
}

// The fields of all four bytes at bit `shift`, as bytes 0 .. 2^kBits - 1.
template <int kBits>
static inline __attribute__((always_inline)) Words ByteField(Words x, int shift) {
  const Halves field = shift == 0 ? (Halves)x : (Halves)x >> shift;
  return (Words)(field & (uint16_t)(((1 << kBits) - 1) * 0x101));
}

// sum += the products of a lane's two int16. Additions are asm: GCC 12 spills accumulators around
// the intrinsics of fused instructions, and adds up trees of products, which it spills, too.
static inline __attribute__((always_inline)) void AddPairs(Ints* sum, Words a, Ints b) {
#if defined(__AVX512VNNI__)
  asm("vpdpwssd %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
#elif defined(__AVX512F__)
  asm("vpaddd %1, %0, %0" : "+v"(*sum) : "v"(_mm512_madd_epi16((__m512i)a, (__m512i)b)));
#else
  asm("vpaddd %1, %0, %0" : "+x"(*sum) : "x"(_mm256_madd_epi16((__m256i)a, (__m256i)b)));
#endif
}

// sum += the products of a lane's four bytes, unsigned ones times signed ones. Without the fused
// instruction `sum` holds two int16 per lane, each the sum of two products at a time: at most
// MostSums of them fit, after which FlushBytes moves them on.
static inline __attribute__((always_inline)) void AddBytes(Ints* sum, Words u, Words s) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(u), "v"(s));
#elif defined(__AVX512F__)
  asm("vpaddw %1, %0, %0" : "+v"(*sum) : "v"(_mm512_maddubs_epi16((__m512i)u, (__m512i)s)));
#else
  asm("vpaddw %1, %0, %0" : "+x"(*sum) : "x"(_mm256_maddubs_epi16((__m256i)u, (__m256i)s)));
#endif
}

// AddBytes of products up to `field * other`: |2 field other| n <= 32767 keeps n of them in int16.
// Keys of 4 and 2 bits times queries up to 127: 8 and 43. Values times weights up to 255: 4 and 21.
static constexpr int MostSums(int field, int other) {
  return kHasByteDots ? 1 << 20 : 32767 / (2 * field * other);
}

static inline __attribute__((always_inline)) Ints FlushBytes(Ints sum) {
#if defined(__AVX512VNNI__)
  return sum;
#elif defined(__AVX512F__)
  return (Ints)_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1));
#else
  return (Ints)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
#endif
}

// x rounded to the nearest integer, |x| < 2^22: the sum's mantissa holds it.
static inline Ints Round(Floats x) {
  const Floats magic = Set(12582912.f);  // 1.5 * 2^23
  return (Ints)(x + magic) - (Ints)magic;
}

// Words that codes are multiplied with, from kLanes numbers. A quad (a, b, c, d) of int16 gives
// (a, c) for even bytes and (b, d) for odd ones: in lanes 4i and 4i + 1 of the result.
static inline Ints PairWords(Ints x) {
#if defined(__AVX512F__)
  const Ints high = (Ints)_mm512_shuffle_epi32((__m512i)x, (_MM_PERM_ENUM)0xee);
#else
  const Ints high = (Ints)_mm256_shuffle_epi32((__m256i)x, 0xee);
#endif
  return (x & 0xffff) | high << 16;
}

// Those of quad i at target + i * step, those of odd bytes `apart` words on.
static inline void PutPairs(Ints x, int32_t* target, int64_t step, int64_t apart) {
  const Ints words = PairWords(x);
  MINICACHE_UNROLL
  for (int i = 0; i < kLanes / 4; i++) {
    target[i * step] = words[4 * i];
    target[i * step + apart] = words[4 * i + 1];
  }
}

typedef int8_t NarrowBytes __attribute__((vector_size(kLanes)));

static inline void PutBytes(Ints x, int32_t* target, int64_t step) {
  const NarrowBytes bytes = __builtin_convertvector(x, NarrowBytes);
  int32_t words[kLanes / 4];
  memcpy(words, &bytes, sizeof bytes);
  MINICACHE_UNROLL
  for (int i = 0; i < kLanes / 4; i++) target[i * step] = words[i];
}

// Those of four vectors, all quads one after the other: 32 words.
static inline void PutPairsInOrder(const Ints (&x)[4], int32_t* target) {
#if defined(__AVX512F__)
  // Instructions that pack take quads of two vectors in turn.
  const __m512i split = _mm512_set4_epi32(0x0f0e0b0a, 0x0d0c0908, 0x07060302, 0x05040100);
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  for (int i = 0; i < 4; i += 2) {
    const __m512i both = _mm512_packs_epi32((__m512i)x[i], (__m512i)x[i + 1]);
    const __m512i words = _mm512_permutexvar_epi64(order, _mm512_shuffle_epi8(both, split));
    _mm512_storeu_si512(target + 8 * i, words);
  }
#else
  for (int i = 0; i < 4; i++) {
    const __m256i packed = _mm256_permute4x64_epi64((__m256i)PairWords(x[i]), 0x08);
    _mm_storeu_si128((__m128i*)(target + kLanes / 2 * i), _mm256_castsi256_si128(packed));
  }
#endif
}

// Likewise, for bytes: 16 words.
static inline void PutBytesInOrder(const Ints (&x)[4], int32_t* target) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_packs_epi32((__m512i)x[0], (__m512i)x[1]);
  const __m512i high = _mm512_packs_epi32((__m512i)x[2], (__m512i)x[3]);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i words = _mm512_packus_epi16(low, high);
  _mm512_storeu_si512(target, _mm512_permutexvar_epi32(order, words));
#else
  for (int i = 0; i < 4; i++) {
    const NarrowBytes bytes = __builtin_convertvector(x[i], NarrowBytes);
    memcpy(target + kLanes / 4 * i, &bytes, sizeof bytes);
  }
#endif
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
