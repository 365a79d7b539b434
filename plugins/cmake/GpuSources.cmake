# The GPU path: what a call launches, and how it is launched; and what it shares with the CPU path.
# Needs no CUDA to build. Compiled once for all libraries.
add_library(minicache_gpu OBJECT
  cpu/attributes.cpp
  cpu/check_delta.cpp
  cpu/check_eviction.cpp
  cpu/tensor.cpp
  cpu/tensors.cpp
  gpu/attend_plan.cpp
  gpu/choose_image.cpp
  gpu/device_table.cpp
  gpu/driver.cpp
  gpu/encode_plan.cpp
  gpu/kernel_pack.cpp
  gpu/launcher.cpp
  gpu/module_cache.cpp
  gpu/new_layers.cpp
  gpu/observe_plan.cpp
  gpu/plan.cpp
  gpu/plan_text.cpp
  gpu/retain_plan.cpp
  gpu/scratch_bound.cpp
  gpu/scratch_layout.cpp)
target_include_directories(minicache_gpu PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
                                                 ${CMAKE_CURRENT_SOURCE_DIR}/include)
target_compile_options(minicache_gpu PRIVATE -Wall -Wextra)
