// Encoding of `subspace`: the joint vector of a code head's layers and slots, its components, and
// their levels.
#include "cpu/code_reader.h"
#include "cpu/code_writer.h"
#include "cpu/isa_kernels.h"
#include "cpu/merge.h"
#include "cpu/tables.h"

namespace minicache {
namespace MINICACHE_ISA {
namespace {

typedef float NarrowFloats __attribute__((vector_size(kWideLanes * 4)));
typedef int32_t NarrowInts __attribute__((vector_size(kWideLanes * 4)));

Doubles Widen(const float* x) {
  NarrowFloats v;
  memcpy(&v, x, sizeof v);
  return __builtin_convertvector(v, Doubles);
}

// Layers outermost, then the slots of the code head, then D.
void Join(const JointTask& task, int64_t position, float* joint) {
  const EncodeTask& t = *task.tokens;
  const Dtype dtype = position >= t.past ? t.fresh_dtype : t.exact_dtype;
  const int64_t first = (int64_t)task.code_head * task.slots_per_code;
  for (int64_t g = 0; g < t.layer_count; g++) {
    for (int64_t j = 0; j < task.slots_per_code; j++, joint += t.head_size) {
      ToFloat(dtype, VectorOf(t, t.layers[g], first + j, position), t.head_size, joint);
      if (task.rotation) Turn(*task.rotation, task.rotation->SegmentOf(position), joint);
    }
  }
}

// The length of y, n a multiple of 8; 0 where it is not finite.
double Length(int64_t n, const float* y) {
  Doubles square = {};
  for (int64_t i = 0; i < n; i += kWideLanes) {
    const Doubles x = Widen(y + i);
    square += x * x;
  }
  const double sum = Sum(square);
  return __builtin_isfinite(sum) ? __builtin_sqrt(sum) : 0.0;
}

// The level of each component, in its place.
void ToLevels(const CodeSegment& s, const float* step, double length, float* y) {
  const int offset = 1 << (s.bits - 1);
  const double inverse = length > 0.0 ? 1.0 / length : 0.0;
  const Doubles middle = Doubles{} + (double)offset, last = middle + (double)(offset - 1);
  for (int c = 0; c < s.count; c += kWideLanes) {
    Doubles k = middle;
    if (length > 0.0) k += Widen(y + c) * inverse / Widen(step + c);
    k = k > 0.0 ? k : Doubles{};
    k = k < last ? k : last;
    const NarrowInts level = __builtin_convertvector(k, NarrowInts);  // rounds down: k >= 0
    memcpy(y + c, &level, sizeof level);
  }
}

// Byte j of a segment holds the levels of components j, j + span, ...
template <int kBits>
void Pack(const CodeSegment& s, const float* levels, uint8_t* bytes) {
  const int span = SegmentBytes(s);
  uint8_t* target = bytes + s.first_byte;
  for (int j = 0; j < span; j++) {
    uint32_t byte = 0;
    for (int p = 0; p < 8 / kBits; p++) byte |= FloatToBits(levels[p * span + j]) << (kBits * p);
    target[j] = (uint8_t)byte;
  }
}

void Quantise(const CodeSegment& s, const float* step, double length, float* y, uint8_t* bytes) {
  ToLevels(s, step, length, y);
  if (s.bits == 8) Pack<8>(s, y, bytes);
  if (s.bits == 4) Pack<4>(s, y, bytes);
  if (s.bits == 2) Pack<2>(s, y, bytes);
}

}  // namespace

int64_t JointScratch(int64_t tokens, int64_t joint) {
  return (tokens + kTableRows) * ((joint + 15) / 16 * 16);
}

void ProjectJoint(const JointTask& task) {
  const EncodeTask& t = *task.tokens;
  const int64_t joint = (int64_t)t.layer_count * task.slots_per_code * t.head_size;
  const int64_t stride = (joint + 15) / 16 * 16, count = t.end - t.begin;
  for (int64_t i = 0; i < count; i++) Join(task, t.begin + i, task.joint + i * stride);
  ClearTails(task.joint, stride, 0, count, joint, stride);
  ProjectRows(task.joint, stride, count, task.encoder, task.encoder_dtype, joint, joint,
              task.component_begin, task.component_end, task.joint + count * stride, task.projected,
              t.format->components);
}

void QuantiseJoint(const JointTask& task) {
  const EncodeTask& t = *task.tokens;
  const CodeFormat& format = *t.format;
  uint8_t* bytes = (uint8_t*)task.joint;
  for (int64_t p = t.begin; p < t.end; p++) {
    float* y = task.projected + (p - t.begin) * format.components;
    const double length = Length(format.components, y);
    memset(bytes, 0, (size_t)format.bytes);
    for (int i = 0; i < format.segment_count; i++) {
      const CodeSegment& s = format.segments[i];
      Quantise(s, task.step + s.first_component, length, y + s.first_component, bytes);
    }
    StoreCode(t, *t.format, t.code, task.code_head, p, bytes);
    t.magnitude[task.code_head * t.capacity + p - t.evicted] =
        FloatToHalf((float)(length < 65504.0 ? length : 65504.0));
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
