#include <algorithm>

#include "minicache/tensors.h"

namespace minicache {

const char* ElementTypeName(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kInt8:
      return "int8";
    case ElementType::kInt32:
      return "int32";
    default:
      return "of another kind";
  }
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (int32_t i = 0; i < rank; i++) count *= shape[i];
  return count;
}

int64_t Tensor::bytes() const {
  const bool four = type == ElementType::kFloat32 || type == ElementType::kInt32;
  return elements() * (four ? 4 : type == ElementType::kInt8 ? 1 : 2);
}

bool Tensor::operator==(const Tensor& other) const {
  return data == other.data && type == other.type && rank == other.rank &&
         std::equal(shape, shape + std::max(rank, 0), other.shape);
}

}  // namespace minicache
