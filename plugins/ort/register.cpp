// Entry points of libminicache_ort.so.
#include <cstdlib>
#include <string>

#include "minicache/kernels.h"
#include "ort/minicache_attention_op.h"

#define MINICACHE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr char kDomain[] = "com.minicache";
constexpr int kAbiVersion = 1;
// The first ONNX Runtime whose custom ops take and return lists of mixed types.
constexpr int kLeastMinor = 20;

bool IsOlder(const std::string& version) {
  const size_t dot = version.find('.');
  const int major = std::atoi(version.c_str());
  const int minor = dot == std::string::npos ? 0 : std::atoi(version.c_str() + dot + 1);
  return major < 1 || (major == 1 && minor < kLeastMinor);
}

}  // namespace

// Counts changes of the C interface and of the operator's contract.
MINICACHE_EXPORT int minicache_abi_version() { return kAbiVersion; }

// The instruction set in use: baseline, avx2 or avx512.
MINICACHE_EXPORT const char* minicache_isa() { return minicache::Kernels().isa; }

MINICACHE_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                           const OrtApiBase* base) {
  const std::string version = base->GetVersionString();
  if (IsOlder(version)) {
    // CreateStatus has been there since the first API.
    const std::string message = "minicache needs ONNX Runtime 1." + std::to_string(kLeastMinor) +
                                " or newer, this is " + version +
                                "; pip install --upgrade onnxruntime";
    return base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED, message.c_str());
  }
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  Ort::InitApi(api);
  // ONNX Runtime keeps pointers to both as long as sessions live.
  static const minicache::ort::MiniCacheAttentionOp op;
  static const OrtCustomOpDomain* const domain = [&]() -> const OrtCustomOpDomain* {
    OrtCustomOpDomain* created = nullptr;
    if (OrtStatus* status = api->CreateCustomOpDomain(kDomain, &created)) {
      api->ReleaseStatus(status);
      return nullptr;
    }
    if (OrtStatus* status = api->CustomOpDomain_Add(created, &op)) {
      api->ReleaseStatus(status);
      return nullptr;
    }
    return created;
  }();
  if (domain == nullptr) return api->CreateStatus(ORT_FAIL, "minicache: no custom op domain");
  return api->AddCustomOpDomain(options, const_cast<OrtCustomOpDomain*>(domain));
}
