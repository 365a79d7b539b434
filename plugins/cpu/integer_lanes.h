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

// Those of all quads one after the other.
static inline void PutPairsInOrder(Ints x, int32_t* target) {
  const Ints words = PairWords(x);
#if defined(__AVX512F__)
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
  const __m512i packed = _mm512_permutexvar_epi64(order, (__m512i)words);
  _mm256_storeu_si256((__m256i*)target, _mm512_castsi512_si256(packed));
#else
  const __m256i packed = _mm256_permute4x64_epi64((__m256i)words, 0x08);
  _mm_storeu_si128((__m128i*)target, _mm256_castsi256_si128(packed));
#endif
}

typedef int8_t NarrowBytes __attribute__((vector_size(kLanes)));

static inline void PutBytes(Ints x, int32_t* target, int64_t step) {
  const NarrowBytes bytes = __builtin_convertvector(x, NarrowBytes);
  int32_t words[kLanes / 4];
  memcpy(words, &bytes, sizeof bytes);
  MINICACHE_UNROLL
  for (int i = 0; i < kLanes / 4; i++) target[i * step] = words[i];
}

static inline void PutBytesInOrder(Ints x, int32_t* target) {
  const NarrowBytes bytes = __builtin_convertvector(x, NarrowBytes);
  memcpy(target, &bytes, sizeof bytes);
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
