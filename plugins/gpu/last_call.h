// Decode steps repeat each other: the same shapes, mostly at the same addresses.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gpu/plan.h"

namespace minicache {

// Keeps the launches of a node's last call, as writing them takes longer than enqueueing them.
class LastCall {
 public:
  using Launches = std::shared_ptr<const std::vector<Launch>>;

  // The launches of a call; `slots` are the node's. Any number of threads may ask.
  Launches Get(const GpuPlan& plan, const std::vector<Slot>& slots, const Tensors& tensors,
               uint64_t table, uint64_t scratch, const CallShape& shape) {
    std::vector<Tensor> now;
    now.reserve(slots.size() + 1);
    for (const Slot& slot : slots) now.push_back(tensors.at(slot));
    now.push_back(tensors.attention);
    const std::pair<uint64_t, uint64_t> places = {table, scratch};
    const std::lock_guard<std::mutex> guard(mutex_);
    if (launches_ == nullptr || places != places_ || now != tensors_) {
      launches_ = std::make_shared<const std::vector<Launch>>(
          plan.Launches(tensors, shape, table, scratch));
      places_ = places;
      tensors_ = std::move(now);
    }
    return launches_;
  }

 private:
  std::mutex mutex_;
  std::vector<Tensor> tensors_;
  std::pair<uint64_t, uint64_t> places_;
  Launches launches_;
};

}  // namespace minicache
