#include "gpu/choose_image.h"

#include "minicache/launcher.h"

namespace minicache::gpu {
namespace {

// Within a major version code runs on later minor ones, but not across the line between cards and
// Tegra (sm_87); from 90 on our code uses instructions of one architecture alone ("sm_90a").
// CUDA C++ Programming Guide, "Binary Compatibility" and "Feature-specific Architectures".
bool Runs(const KernelImage& image, uint32_t capability) {
  if (image.is_ptx) return image.arch <= capability;
  if (image.arch == capability) return true;
  const bool cards = capability == 86 || capability == 89;
  return cards && image.arch >= 80 && image.arch < capability && image.arch != 87;
}

bool IsBetter(const KernelImage& image, const KernelImage& than) {
  return image.is_ptx != than.is_ptx ? than.is_ptx : image.arch > than.arch;
}

}  // namespace

const KernelImage& ChooseImage(const Kernel& kernel, uint32_t capability) {
  const KernelImage* best = nullptr;
  std::string held;
  for (const KernelImage& image : kernel.images) {
    held += (held.empty() ? "" : ", ") + std::string(image.is_ptx ? "PTX of sm_" : "sm_") +
            std::to_string(image.arch);
    if (Runs(image, capability) && (best == nullptr || IsBetter(image, *best))) best = &image;
  }
  if (best != nullptr) return *best;
  const std::string device = "this GPU has compute capability " + std::to_string(capability / 10) +
                             "." + std::to_string(capability % 10);
  if (capability < 80) {
    throw GpuError(device + ", the kernels need 8.0 or newer (Ampere); run on the CPU instead");
  }
  throw GpuError(device + ", and kernel '" + kernel.key + "' was compiled for " + held +
                 " only; build the kernels for sm_" + std::to_string(capability) + " as well");
}

}  // namespace minicache::gpu
