# The GPU path: what a call launches, and how it is launched. Needs no CUDA to build.
target_sources(minicache_ort PRIVATE
  gpu/attend_plan.cpp
  gpu/choose_image.cpp
  gpu/device_table.cpp
  gpu/driver.cpp
  gpu/encode_plan.cpp
  gpu/kernel_pack.cpp
  gpu/launcher.cpp
  gpu/module_cache.cpp
  gpu/plan.cpp
  gpu/plan_text.cpp
  gpu/retain_plan.cpp
  gpu/scratch_layout.cpp)
find_package(Threads REQUIRED)
target_link_libraries(minicache_ort PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
