// Merging of the vectors of a group's layers into one direction (paper Eq. 2 and 3), in fp64: where
// two layers nearly oppose each other, the interpolation magnifies rounding errors by up to 10^4.
#pragma once

#include "cpu/elements.h"
#include "minicache/encode.h"

namespace minicache {
namespace MINICACHE_ISA {

constexpr int kWideLanes = kLanes / 2;
typedef double Doubles __attribute__((vector_size(kWideLanes * 8)));

// Below this sine the two directions span no plane.
constexpr double kCollinearSine = 1e-4;

static inline Doubles Load(const double* source) {
  Doubles v;
  memcpy(&v, source, sizeof v);
  return v;
}

static inline void Store(double* target, Doubles v) { memcpy(target, &v, sizeof v); }

static inline double Sum(const Doubles& v) {
  double sum = 0.0;
  for (int i = 0; i < kWideLanes; i++) sum += v[i];
  return sum;
}

static inline double Dot(const double* a, const double* b, int64_t n) {
  Doubles sum = {};
  for (int64_t i = 0; i < n; i += kWideLanes) sum += Load(a + i) * Load(b + i);
  return Sum(sum);
}

// x becomes a unit vector; a zero vector stays zero. Returns the norm.
static inline double Normalise(double* x, int64_t n) {
  const double norm = __builtin_sqrt(Dot(x, x, n));
  if (norm > 0.0) {
    for (int64_t i = 0; i < n; i += kWideLanes) Store(x + i, Load(x + i) / norm);
  }
  return norm;
}

// a = weight_a * a + weight_b * b.
static inline void Blend(double* a, double weight_a, const double* b, double weight_b, int64_t n) {
  for (int64_t i = 0; i < n; i += kWideLanes) {
    Store(a + i, weight_a * Load(a + i) + weight_b * Load(b + i));
  }
}

// a = slerp(a, b; t) of unit vectors. The angle comes from |a - b| and |a + b|: the arc cosine of
// their product loses half of the digits where layers agree, which is where they are merged.
static inline void Slerp(double* a, const double* b, double t, int64_t n) {
  Doubles apart = {}, together = {};
  for (int64_t i = 0; i < n; i += kWideLanes) {
    const Doubles difference = Load(a + i) - Load(b + i), sum = Load(a + i) + Load(b + i);
    apart += difference * difference;
    together += sum * sum;
  }
  const double difference = __builtin_sqrt(Sum(apart)), sum = __builtin_sqrt(Sum(together));
  const double angle = 2.0 * __builtin_atan2(difference, sum), sine = __builtin_sin(angle);
  if (sine >= kCollinearSine) {
    Blend(a, __builtin_sin((1.0 - t) * angle) / sine, b, __builtin_sin(t * angle) / sine, n);
  } else if (sum > difference) {
    Blend(a, 1.0 - t, b, t, n);
    Normalise(a, n);
  }  // antipodal: no direction between is better than another, and a is one that was there
}

struct Merged {
  double* vectors;     // [G, padded]; unit vectors after Merge
  double* direction;   // [padded]
  double* magnitudes;  // [G] lengths of the layers' own vectors; after Merge what is stored: all of
                       // them, or the first one alone for the rules that keep one
};

static inline void Merge(const EncodeTask& task, const Merged& m, float* cosine_sum,
                         float* cosine_minimum) {
  const int64_t n = task.padded_size;
  const int last = task.layer_count - 1;
  bool nonzero = Normalise(m.vectors, n) > 0.0;
  memcpy(m.direction, m.vectors, (size_t)n * sizeof(double));
  bool known = nonzero;  // whether the direction is one yet
  double blended = m.magnitudes[0];
  for (int g = 1; g <= last; g++) {
    double* unit = m.vectors + g * n;
    const bool below = nonzero;
    nonzero = Normalise(unit, n) > 0.0;
    double cosine = 1.0;
    if (nonzero && below) cosine = Dot(unit - n, unit, n);
    cosine = cosine > 1.0 ? 1.0 : cosine < -1.0 ? -1.0 : cosine;
    *cosine_sum += (float)cosine;
    if ((float)cosine < *cosine_minimum) *cosine_minimum = (float)cosine;

    const double t = 2.0 * (double)task.slerp_t / (g + 1);
    blended = (1.0 - t) * blended + t * m.magnitudes[g];
    if (known && nonzero) Slerp(m.direction, unit, t, n);
    if (!known && nonzero) memcpy(m.direction, unit, (size_t)n * sizeof(double));
    known |= nonzero;
  }
  if (task.magnitude_rule == MagnitudeRule::kUpper) m.magnitudes[0] = m.magnitudes[last];
  if (task.magnitude_rule == MagnitudeRule::kBlended) m.magnitudes[0] = blended;
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
