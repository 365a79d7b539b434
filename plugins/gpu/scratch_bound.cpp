// Scratch for a whole range of calls: smaller calls may need more, as they are cut into more
// splits.
#include <algorithm>

#include "gpu/plan.h"
#include "gpu/scratch_layout.h"

namespace minicache {

int64_t GpuPlan::ScratchBound(const CallShape& most) const {
  // With the capacity, splits and segments grow (or the latter by themselves), so that at given B
  // and S the largest capacity needs the most, unless the call is cut into chunks: their scratch
  // ends near the bound of the options.
  const int64_t chunked = node_.options.scratch_bytes + ScratchLayout::kPadding;
  int64_t bound = 0;
  CallShape shape = most;
  bool all_whole = false;
  for (shape.batch = 1; shape.batch <= most.batch; shape.batch++) {
    // From where nothing is split on, scratch grows with S and with B; the last of each are enough.
    if (all_whole) shape.batch = most.batch;
    all_whole = false;
    for (shape.new_tokens = 1; shape.new_tokens <= most.new_tokens; shape.new_tokens++) {
      const ScratchLayout layout(node_, shape);
      const bool cut = layout.chunk < shape.new_tokens;
      bound = std::max({bound, layout.bytes, cut ? layout.shared + chunked : 0});
      if (layout.splits > 1 || layout.exact_splits > 1) continue;
      all_whole = all_whole || shape.new_tokens == 1;
      shape.new_tokens = std::max(shape.new_tokens, most.new_tokens - 1);
    }
  }
  return bound;
}

}  // namespace minicache
