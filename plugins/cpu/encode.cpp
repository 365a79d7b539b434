// Merging and encoding of tokens that leave the window (paper Eq. 2 and 3), and type conversion.
#include "cpu/code_reader.h"
#include "cpu/isa_kernels.h"

namespace minicache {
namespace MINICACHE_ISA {
namespace {

// Below this sine the two directions span no plane that fp32 can name.
constexpr double kCollinearSine = 1e-4;

float Norm(const float* x, int64_t n) {
  Floats sum = {};
  for (int64_t i = 0; i < n; i += kLanes) sum += Load(x + i) * Load(x + i);
  return __builtin_sqrtf(Sum(sum));
}

float Dot(const float* a, const float* b, int64_t n) {
  Floats sum = {};
  for (int64_t i = 0; i < n; i += kLanes) sum += Load(a + i) * Load(b + i);
  return Sum(sum);
}

// x becomes a unit vector; a zero vector stays zero. Returns the norm.
float Normalise(float* x, int64_t n) {
  const float norm = Norm(x, n);
  if (norm > 0.f) {
    for (int64_t i = 0; i < n; i += kLanes) Store(x + i, Load(x + i) / Set(norm));
  }
  return norm;
}

void Blend(float* a, float weight_a, const float* b, float weight_b, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Store(a + i, Set(weight_a) * Load(a + i) + Set(weight_b) * Load(b + i));
  }
}

// a = slerp(a, b; t) of unit vectors. The angle comes from |a - b| and |a + b|: the arc cosine of
// their product loses half of the digits where layers agree, which is where they are merged.
void Slerp(float* a, const float* b, double t, int64_t n) {
  Floats apart = {}, together = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats x = Load(a + i), y = Load(b + i);
    apart += (x - y) * (x - y);
    together += (x + y) * (x + y);
  }
  const double difference = Sum(apart), sum = Sum(together);
  const double angle = 2.0 * __builtin_atan2(__builtin_sqrt(difference), __builtin_sqrt(sum));
  const double sine = __builtin_sin(angle);
  if (sine >= kCollinearSine) {
    Blend(a, (float)(__builtin_sin((1.0 - t) * angle) / sine), b,
          (float)(__builtin_sin(t * angle) / sine), n);
  } else if (sum > difference) {
    Blend(a, (float)(1.0 - t), b, (float)t, n);
    Normalise(a, n);
  }  // antipodal: every direction between is as good, and a is one that was there
}

struct Merged {
  float* vectors;     // [G, padded]; unit vectors after Merge
  float* direction;   // [padded]
  float* magnitudes;  // [G]
};

void Merge(const EncodeTask& task, const Merged& m, float* cosine_sum, float* cosine_minimum) {
  const int64_t n = task.padded_size;
  for (int g = 0; g < task.layer_count; g++) {
    m.magnitudes[g] = Normalise(m.vectors + g * n, n);
  }
  memcpy(m.direction, m.vectors, (size_t)n * sizeof(float));
  bool known = m.magnitudes[0] > 0.f;
  float blended = m.magnitudes[0];
  for (int g = 1; g < task.layer_count; g++) {
    const float* unit = m.vectors + g * n;
    const bool nonzero = m.magnitudes[g] > 0.f;
    float cosine = 1.f;
    if (nonzero && m.magnitudes[g - 1] > 0.f) cosine = Dot(unit - n, unit, n);
    *cosine_sum += cosine;
    if (cosine < *cosine_minimum) *cosine_minimum = cosine;

    const double t = 2.0 * (double)task.slerp_t / (g + 1);
    blended = (float)((1.0 - t) * blended + t * m.magnitudes[g]);
    if (known && nonzero) Slerp(m.direction, unit, t, n);
    if (!known && nonzero) memcpy(m.direction, unit, (size_t)n * sizeof(float));
    known |= nonzero;
  }
  if (task.magnitude_rule == MagnitudeRule::kUpper) {
    m.magnitudes[0] = m.magnitudes[task.layer_count - 1];
  } else if (task.magnitude_rule == MagnitudeRule::kBlended) {
    m.magnitudes[0] = blended;
  }
}

// Writes the code into `bytes` (zeroed) and returns the step that magnitudes take in.
float Quantise(const CodeSegment& s, int64_t padded, const float* direction, uint8_t* bytes) {
  if (s.bits == 16) {
    FromFloat(direction, s.count, Dtype::kFloat16, (char*)bytes);
    return 1.f;
  }
  Floats largest = {};
  for (int64_t i = 0; i < padded; i += kLanes) {
    largest = Max(largest, Max(Load(direction + i), -Load(direction + i)));
  }
  const int offset = 1 << (s.bits - 1), last = 2 * offset - 1;
  const float step = Maximum(largest) / Middle(s.bits);
  const int span = SegmentBytes(s);
  for (int c = 0; c < s.count; c++) {
    int k = offset;
    if (step > 0.f) k += (int)__builtin_floorf(direction[c] / step);
    k = k < 0 ? 0 : k > last ? last : k;
    bytes[c % span] |= (uint8_t)(k << (s.bits * (c / span)));
  }
  return step;
}

void StoreCode(const EncodeTask& task, int64_t head, int64_t position, const uint8_t* bytes) {
  const int64_t n = task.format->bytes, t = position;
  char* code = task.code + head * task.capacity * n;
  if (task.format->layout == Layout::kRow) {
    memcpy(code + t * n, bytes, (size_t)n);
  } else if (task.values) {
    char* quad = code + t / 4 * 4 * n + t % 4;
    for (int64_t j = 0; j < n; j++) quad[j * 4] = (char)bytes[j];
  } else {
    char* tile = code + t / 16 * 16 * n + t % 16 * 4;
    for (int64_t j = 0; j < n; j += 4) memcpy(tile + j * 16, bytes + j, 4);
  }
}

const char* VectorOf(const EncodeTask& task, const LayerVectors& layer, int64_t head,
                     int64_t position) {
  const int64_t h = layer.permutation[head], size = task.head_size;
  if (position >= task.past) {
    const int64_t token = position - task.past;
    return layer.fresh + (token * task.heads + h) * size * ElementBytes(task.fresh_dtype);
  }
  const int64_t ring = task.sinks + (position - task.sinks) % task.ring_slots;
  const int64_t slot = position < task.sinks ? position : ring;
  return layer.exact + (h * task.slots + slot) * size * ElementBytes(task.exact_dtype);
}

}  // namespace

int64_t EncodeScratch(int64_t layers, int64_t padded_size) {
  return (layers + 2) * padded_size + layers;  // the code's bytes take at most `padded` floats
}

void Encode(const EncodeTask& task) {
  const int64_t padded = task.padded_size, n = task.format->bytes;
  const Merged merged = {task.scratch, task.scratch + task.layer_count * padded,
                         task.scratch + (task.layer_count + 2) * padded};
  uint8_t* bytes = (uint8_t*)(merged.direction + padded);
  memset(merged.vectors, 0, (size_t)(task.layer_count * padded) * sizeof(float));
  for (int64_t p = task.begin; p < task.end; p++) {
    for (int64_t head = 0; head < task.heads; head++) {
      const Dtype dtype = p >= task.past ? task.fresh_dtype : task.exact_dtype;
      for (int g = 0; g < task.layer_count; g++) {
        ToFloat(dtype, VectorOf(task, task.layers[g], head, p), task.head_size,
                merged.vectors + g * padded);
      }
      Merge(task, merged, task.cosine_sum + (p - task.begin),
            task.cosine_minimum + (p - task.begin));
      memset(bytes, 0, (size_t)n);
      const float step = Quantise(task.format->segments[0], padded, merged.direction, bytes);
      StoreCode(task, head, p, bytes);
      uint16_t* magnitude =
          task.magnitude + (head * task.capacity + p) * (int64_t)task.magnitude_count;
      for (int i = 0; i < task.magnitude_count; i++) {
        const float m = merged.magnitudes[i] * step;
        magnitude[i] = FloatToHalf(m < 65504.f ? m : 65504.f);
      }
    }
  }
}

void Copy(const CopyTask& task) {
  if (task.source_dtype == task.target_dtype) {
    memcpy(task.target, task.source, (size_t)(task.elements * ElementBytes(task.source_dtype)));
    return;
  }
  float buffer[64];
  for (int64_t i = 0; i < task.elements; i += 64) {
    const int64_t n = task.elements - i < 64 ? task.elements - i : 64;
    ToFloat(task.source_dtype, task.source + i * ElementBytes(task.source_dtype), n, buffer);
    FromFloat(buffer, n, task.target_dtype, task.target + i * ElementBytes(task.target_dtype));
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
