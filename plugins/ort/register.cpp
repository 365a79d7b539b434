// Entry points of libminicache_ort.so.
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/plan_text.h"
#include "minicache/contract.h"
#include "minicache/kernels.h"
#include "ort/minicache_attention_cuda_op.h"
#include "ort/minicache_attention_op.h"

#define MINICACHE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr char kPackOption[] = "minicache.kernels";
// The first ONNX Runtime whose custom ops take and return lists of mixed types.
constexpr int kLeastMinor = 20;

bool IsOlder(const std::string& version) {
  const size_t dot = version.find('.');
  const int major = std::atoi(version.c_str());
  const int minor = dot == std::string::npos ? 0 : std::atoi(version.c_str() + dot + 1);
  return major < 1 || (major == 1 && minor < kLeastMinor);
}

// The kernels of both execution providers in a domain.
struct Ops {
  explicit Ops(const OrtApi& api, const std::string& pack) : cpu(!pack.empty()), cuda(pack) {
    Ort::ThrowOnError(api.CreateCustomOpDomain(minicache::kDomain, &domain));
    Ort::ThrowOnError(api.CustomOpDomain_Add(domain, &cpu));
    Ort::ThrowOnError(api.CustomOpDomain_Add(domain, &cuda));
  }
  OrtCustomOpDomain* domain = nullptr;
  const minicache::ort::MiniCacheAttentionOp cpu;
  const minicache::ort::MiniCacheAttentionCudaOp cuda;
};

// The session option that names the folder of CUDA kernels, or an empty string.
std::string PackOf(const OrtApi& api, const OrtSessionOptions* options) {
  int given = 0;
  Ort::ThrowOnError(api.HasSessionConfigEntry(options, kPackOption, &given));
  if (given == 0) return "";
  size_t size = 0;
  Ort::ThrowOnError(api.GetSessionConfigEntry(options, kPackOption, nullptr, &size));
  std::string pack(size, '\0');
  Ort::ThrowOnError(api.GetSessionConfigEntry(options, kPackOption, &pack[0], &size));
  pack.resize(size > 0 ? size - 1 : 0);  // the terminating zero counts
  return pack;
}

// ONNX Runtime keeps pointers to domain and ops as long as sessions live, and does not say when
// they end. So they are never freed: one set for all sessions without CUDA kernels, and a few
// hundred bytes for each session option that names some. What is large belongs to the sessions'
// kernels.
OrtStatus* AddOps(const OrtApi& api, OrtSessionOptions* options) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<const Ops>>& all =
      *new std::vector<std::unique_ptr<const Ops>>;  // sessions may outlive static objects
  const std::string pack = PackOf(api, options);
  const std::lock_guard<std::mutex> guard(mutex);
  if (all.empty()) all.push_back(std::make_unique<const Ops>(api, ""));
  if (!pack.empty()) all.push_back(std::make_unique<const Ops>(api, pack));
  const Ops& ops = pack.empty() ? *all.front() : *all.back();
  return api.AddCustomOpDomain(options, ops.domain);
}

}  // namespace

// Counts changes of the C interface and of the operator's contract.
MINICACHE_EXPORT int minicache_abi_version() { return minicache::kAbiVersion; }

// The instruction set in use: baseline, avx2 or avx512.
MINICACHE_EXPORT const char* minicache_isa() { return minicache::Kernels().isa; }

// The launches of a node on a GPU (gpu/plan_text.h); valid until the thread's next call.
MINICACHE_EXPORT const char* minicache_gpu_plan(const char* request) {
  static thread_local std::string answer;
  answer = minicache::PlanText(request);
  return answer.c_str();
}

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
  try {
    return AddOps(*api, options);
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, error.what());
  }
}
