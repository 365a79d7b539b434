// Entry points of libminicache_ort.so.
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/plan_text.h"
#include "minicache/contract.h"
#include "minicache/kernels.h"
#include "minicache/maths.h"
#include "ort/minicache_attention_cuda_op.h"
#include "ort/minicache_attention_op.h"

#define MINICACHE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Session options. They must be set before the library is registered with them.
constexpr char kPackOption[] = "minicache.kernels";    // the folder of CUDA kernels
constexpr char kMathsOption[] = "minicache.cpu_math";  // fp32, int16, int8; absent: by rule
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
  Ops(const OrtApi& api, const std::string& pack, minicache::MathsSetting maths)
      : cpu(!pack.empty(), maths), cuda(pack) {
    Ort::ThrowOnError(api.CreateCustomOpDomain(minicache::kDomain, &domain));
    Ort::ThrowOnError(api.CustomOpDomain_Add(domain, &cpu));
    Ort::ThrowOnError(api.CustomOpDomain_Add(domain, &cuda));
  }
  OrtCustomOpDomain* domain = nullptr;
  const minicache::ort::MiniCacheAttentionOp cpu;
  const minicache::ort::MiniCacheAttentionCudaOp cuda;
};

// A session option, or an empty string where it is not set.
std::string Option(const OrtApi& api, const OrtSessionOptions* options, const char* name) {
  int given = 0;
  Ort::ThrowOnError(api.HasSessionConfigEntry(options, name, &given));
  if (given == 0) return "";
  size_t size = 0;
  Ort::ThrowOnError(api.GetSessionConfigEntry(options, name, nullptr, &size));
  std::string value(size, '\0');
  Ort::ThrowOnError(api.GetSessionConfigEntry(options, name, &value[0], &size));
  value.resize(size > 0 ? size - 1 : 0);  // the terminating zero counts
  return value;
}

// ONNX Runtime keeps pointers to domain and ops as long as sessions live, and does not say when
// they end. So they are never freed: one set per maths for all sessions without CUDA kernels, and a
// few hundred bytes for each session option that names some. What is large belongs to the sessions'
// kernels.
OrtStatus* AddOps(const OrtApi& api, OrtSessionOptions* options) {
  static std::mutex mutex;
  // Sessions may outlive static objects.
  static auto& shared = *new std::map<minicache::MathsSetting, std::unique_ptr<const Ops>>;
  static auto& with_pack = *new std::vector<std::unique_ptr<const Ops>>;
  minicache::MathsSetting maths;
  const std::string pack = Option(api, options, kPackOption);
  const std::string wrong = minicache::ReadMaths(Option(api, options, kMathsOption), &maths);
  if (!wrong.empty()) return minicache::ort::Fail(ORT_INVALID_ARGUMENT, wrong);
  const std::lock_guard<std::mutex> guard(mutex);
  std::unique_ptr<const Ops>& ops = pack.empty() ? shared[maths] : with_pack.emplace_back(nullptr);
  if (!ops) ops = std::make_unique<const Ops>(api, pack, maths);
  return api.AddCustomOpDomain(options, ops->domain);
}

}  // namespace

// Counts changes of the C interface and of the operator's contract.
MINICACHE_EXPORT int minicache_abi_version() { return minicache::kAbiVersion; }

// The instruction set in use: baseline, avx2, avx512 or avx512vnni.
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
