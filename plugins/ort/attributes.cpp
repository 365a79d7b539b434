#include "ort/attributes.h"

#include "minicache/read_attributes.h"

namespace minicache::ort {
namespace {

// Each Read leaves the default where the node does not carry the attribute: ONNX Runtime reports
// that as an error, and a status must be released.
class KernelReader {
 public:
  explicit KernelReader(const OrtKernelInfo* info) : info_(info) {}

  void Read(const char* name, int64_t* value) const {
    int64_t found = 0;
    if (Ok(Ort::GetApi().KernelInfoGetAttribute_int64(info_, name, &found))) *value = found;
  }
  void Read(const char* name, float* value) const {
    float found = 0.f;
    if (Ok(Ort::GetApi().KernelInfoGetAttribute_float(info_, name, &found))) *value = found;
  }
  void Read(const char* name, std::string* value) const {
    size_t size = 0;
    const auto get = Ort::GetApi().KernelInfoGetAttribute_string;
    if (!Ok(get(info_, name, nullptr, &size)) || size == 0) return;
    std::string found(size, '\0');
    if (!Ok(get(info_, name, &found[0], &size))) return;
    found.resize(size - 1);  // the terminating zero counts
    *value = found;
  }
  void Read(const char* name, std::vector<int64_t>* value) const {
    size_t size = 0;
    const auto get = Ort::GetApi().KernelInfoGetAttributeArray_int64;
    if (!Ok(get(info_, name, nullptr, &size))) return;
    std::vector<int64_t> found(size);
    if (size == 0 || Ok(get(info_, name, found.data(), &size))) *value = found;
  }

 private:
  static bool Ok(OrtStatus* status) { return Ort::Status(status).IsOK(); }
  const OrtKernelInfo* info_;
};

// Shape inference needs only what decides arity.
class InferReader {
 public:
  explicit InferReader(OrtShapeInferContext* context) : context_(context) {}

  void Read(const char* name, int64_t* value) const {
    int64_t found = 0;
    size_t size = 0;
    const OrtOpAttr* attribute = Find(name);
    if (attribute == nullptr) return;
    const auto read = Ort::GetApi().ReadOpAttr;
    if (Ok(read(attribute, ORT_OP_ATTR_INT, &found, sizeof found, &size))) *value = found;
  }
  void Read(const char* name, std::string* value) const {
    const OrtOpAttr* attribute = Find(name);
    if (attribute == nullptr) return;
    char found[64] = {};
    size_t size = 0;
    const auto read = Ort::GetApi().ReadOpAttr;
    if (Ok(read(attribute, ORT_OP_ATTR_STRING, found, sizeof found - 1, &size))) *value = found;
  }

 private:
  static bool Ok(OrtStatus* status) { return Ort::Status(status).IsOK(); }
  const OrtOpAttr* Find(const char* name) const {
    const OrtOpAttr* attribute = nullptr;
    const auto get = Ort::GetApi().ShapeInferContext_GetAttribute;
    return Ok(get(context_, name, &attribute)) ? attribute : nullptr;
  }
  OrtShapeInferContext* context_;
};

}  // namespace

RawAttributes ReadAttributes(const OrtKernelInfo* info) {
  return ReadRawAttributes(KernelReader(info));
}

RawAttributes ReadAttributes(OrtShapeInferContext* context) {
  RawAttributes raw;
  ReadArity(InferReader(context), &raw);
  return raw;
}

}  // namespace minicache::ort
