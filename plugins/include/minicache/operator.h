// The whole operator on a CPU, for any framework that can lend memory and threads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "minicache/attributes.h"
#include "minicache/maths.h"
#include "minicache/tensors.h"

namespace minicache {

// What the framework lends to one call.
class Host {
 public:
  virtual ~Host() = default;
  // Calls run(data, i) for each i < count, on several threads where the framework has them.
  virtual void ParallelFor(std::size_t count, void (*run)(void*, std::size_t), void* data) = 0;
  // Memory that lives until the call ends; throws where there is none.
  virtual void* Allocate(std::size_t bytes) = 0;
};

// Checks types, shapes and lengths, and fills `shape`. Returns a sentence that says what is wrong,
// or an empty string.
std::string Check(const Attributes& attributes, const std::vector<Slot>& slots,
                  const Tensors& tensors, CallShape* shape);

// Computes the attention of checked tensors and, on a writer, updates the states in place; the
// caller has copied past_* to present_* where they are not the same memory.
void Run(const Attributes& attributes, MathsSetting maths, const Tensors& tensors,
         const CallShape& shape, Host& host);

}  // namespace minicache
