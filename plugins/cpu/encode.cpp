// Merging and encoding of tokens that leave the window (paper Eq. 2 and 3), and type conversion.
#include "cpu/code_reader.h"
#include "cpu/code_writer.h"
#include "cpu/isa_kernels.h"
#include "cpu/pair.h"
#include "cpu/tables.h"

namespace minicache {
namespace MINICACHE_ISA {
namespace {

double StepOf(const CodeSegment& s, const double* direction) {
  double largest = 0.0, square = 0.0;
  for (int c = 0; c < s.count; c++) {
    const double size = __builtin_fabs(direction[c]);
    largest = size > largest ? size : largest;
    square += size * size;
  }
  // Four levels that reach the largest component would be far apart.
  return s.bits == 2 ? __builtin_sqrt(square / s.count) : largest / (double)Middle(s.bits);
}

uint16_t Saturated(double x) { return FloatToHalf((float)(x < 65504.0 ? x : 65504.0)); }

// Writes the code into `bytes` (zeroed) and returns the step that magnitudes take in.
double Quantise(const CodeSegment& s, const double* direction, uint8_t* bytes) {
  if (s.bits == 16) {
    for (int c = 0; c < s.count; c++) Float16::PutOne((char*)bytes + 2 * c, (float)direction[c]);
    return 1.0;
  }
  const int offset = 1 << (s.bits - 1), last = 2 * offset - 1, span = SegmentBytes(s);
  const double step = StepOf(s, direction);
  for (int c = 0; c < s.count; c++) {
    int k = offset;
    if (step > 0.0) k += (int)__builtin_floor(direction[c] / step);
    k = k < 0 ? 0 : k > last ? last : k;
    bytes[c % span] |= (uint8_t)(k << (s.bits * (c / span)));
  }
  return step;
}

// Stores a unit vector as the delta of a token and returns its step. The next vector in memory is
// scratch, like `row`.
double StoreDelta(const EncodeTask& task, int64_t head, int64_t position, double* delta, float* row,
                  uint8_t* bytes) {
  const CodeFormat& format = *task.delta_format;
  const double* kept = delta;
  if (task.basis) {
    double* coefficients = delta + task.padded_size;
    const int64_t size = task.head_size, each = size * ElementBytes(task.basis_dtype);
    const char* basis = task.basis + head * format.components * each;
    for (int64_t k = 0; k < format.components; k++) {
      ToFloat(task.basis_dtype, basis + k * each, size, row);
      double sum = 0.0;
      for (int64_t i = 0; i < size; i++) sum += (double)row[i] * delta[i];
      coefficients[k] = sum;
    }
    kept = coefficients;
  }
  memset(bytes, 0, (size_t)format.bytes);
  const double step = Quantise(format.segments[0], kept, bytes);
  StoreCode(task, format, task.delta, head, position, bytes);
  return step;
}

// Turns a layer's vector into the code space, in place: A_g R(-o) x.
void Align(const EncodeTask& task, int64_t head, int64_t layer, int64_t position, float* vector,
           float* scratch) {
  if (task.rotation) Turn(*task.rotation, task.rotation->SegmentOf(position), vector);
  const int64_t size = task.head_size, stride = task.layer_count * size;
  const char* block =
      task.encoder + (head * size * stride + layer * size) * ElementBytes(task.encoder_dtype);
  float* aligned = scratch + kTableRows * task.padded_size;
  ProjectRows(vector, task.padded_size, 1, block, task.encoder_dtype, stride, size, 0, size,
              scratch, aligned, task.padded_size);
  memcpy(vector, aligned, (size_t)size * sizeof(float));
}

}  // namespace

int64_t EncodeScratch(int64_t layers, int64_t padded_size) {
  // Doubles for the vectors, the direction and the magnitudes; floats for one vector, the bytes of
  // a code, which take at most half of that, and what Align needs.
  return 2 * ((layers + 1) * padded_size + layers) + (3 + kTableRows) * padded_size;
}

void Encode(const EncodeTask& task) {
  const int64_t padded = task.padded_size, layers = task.layer_count;
  double* memory = (double*)task.scratch;
  const Merged merged = {memory, memory + layers * padded, memory + (layers + 1) * padded};
  float* vector = (float*)(merged.magnitudes + layers);
  uint8_t* bytes = (uint8_t*)(vector + padded);
  float* align_scratch = vector + 2 * padded;
  memset(merged.vectors, 0, (size_t)(layers * padded) * sizeof(double));
  ClearTails(vector, padded, 0, 1, task.head_size, padded);
  for (int64_t p = task.begin; p < task.end; p++) {
    const int64_t at = p - task.begin;
    const Dtype dtype = p >= task.past ? task.fresh_dtype : task.exact_dtype;
    for (int64_t head = 0; head < task.heads; head++) {
      for (int64_t g = 0; g < layers; g++) {
        ToFloat(dtype, VectorOf(task, task.layers[g], head, p), task.head_size, vector);
        double* wide = merged.vectors + g * padded;
        for (int64_t i = 0; i < task.head_size; i++) wide[i] = (double)vector[i];
        merged.magnitudes[g] = __builtin_sqrt(Dot(wide, wide, padded));
        if (!task.encoder) continue;
        Align(task, head, g, p, vector, align_scratch);
        for (int64_t i = 0; i < task.head_size; i++) wide[i] = (double)vector[i];
      }
      Merge(task, merged, task.cosine_sum + at, task.cosine_minimum + at);
      const double length = task.delta_format ? SplitPair(task, merged) : 0.0;
      memset(bytes, 0, (size_t)task.format->bytes);
      const double step = Quantise(task.format->segments[0], merged.direction, bytes);
      StoreCode(task, *task.format, task.code, head, p, bytes);
      const int64_t slot = head * task.capacity + p - task.evicted;
      uint16_t* stored = task.magnitude + slot * task.magnitude_count;
      for (int i = 0; i < task.magnitude_count; i++) {
        stored[i] = Saturated(merged.magnitudes[i] * step);
      }
      if (!task.delta_format) continue;
      const double own = StoreDelta(task, head, p, merged.vectors, vector, bytes);
      task.delta_ratio[slot] = Saturated(length * own / (step > 0.0 ? step : 1.0));
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
