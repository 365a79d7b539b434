// Merges the parts of a task's rows; sums of codes become vectors here, once.
#include "cpu/isa_kernels.h"
#include "cpu/tables.h"
#include "cpu/weights.h"

namespace minicache {
namespace MINICACHE_ISA {
namespace {

void MergeRow(const FinishTask& task, int64_t r, float* merged) {
  const int64_t width = task.widths.output;
  float sink = -__builtin_inff();
  if (task.sink) {
    ToFloat(task.dtype, task.sink + r % task.heads * ElementBytes(task.dtype), 1, &sink);
  }
  float maximum = sink;
  bool visible = false;
  for (int64_t part = 0; part < task.part_count; part++) {
    const float m = task.maximum[part * task.rows + r];
    visible |= m > -__builtin_inff();
    maximum = m > maximum ? m : maximum;
  }
  memset(merged, 0, (size_t)width * sizeof(float));
  if (!visible) return;
  float total = task.sink ? ScalarExp(sink - maximum) : 0.f;
  for (int64_t part = 0; part < task.part_count; part++) {
    const int64_t at = part * task.rows + r;
    const Floats factor = Set(ScalarExp(task.maximum[at] - maximum));
    total += factor[0] * task.sum[at];
    const float* source = task.parts + at * width;
    for (int64_t d = 0; d < width; d += kLanes) {
      Store(merged + d, Load(merged + d) + factor * Load(source + d));
    }
  }
  Rescale(1.f / total, width, merged);
}

}  // namespace

int64_t FinishScratch(int64_t rows, const Widths& widths) {
  return rows * widths.output + kTableRows * widths.vector;
}

void Finish(const FinishTask& task) {
  const int64_t bytes = ElementBytes(task.dtype), width = task.widths.output;
  for (int64_t r = 0; r < task.rows; r++) MergeRow(task, r, task.scratch + r * width);
  if (task.value_decoder) {
    MapRows(task.scratch + width - task.widths.value, width, task.rows, task.value_decoder,
            task.value_decoder_dtype, task.head_size, task.components,
            task.scratch + task.rows * width, task.scratch, width);
  }
  for (int64_t r = 0; r < task.rows; r++) {
    const int64_t head = r % task.heads;
    char* target =
        task.output + (r / task.heads * task.output_stride + head * task.head_size) * bytes;
    FromFloat(task.scratch + r * width, task.head_size, task.dtype, target);
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
