// Which compiled image of a kernel a device runs.
#pragma once

#include "gpu/kernel_pack.h"

namespace minicache::gpu {

// `capability`: 10 * major + minor. A cubin of the device's architecture, or of an earlier one that
// runs on it; else PTX, which the driver compiles. Throws GpuError where there is neither.
const KernelImage& ChooseImage(const Kernel& kernel, uint32_t capability);

}  // namespace minicache::gpu
