# The TensorRT plugin, libminicache_trt.so, for TensorRT 10.14 and newer and TensorRT-RTX. It needs
# headers alone, and is left out where there are none: everything else works without.
#
# NVIDIA's wheels ship no headers. The wheel of kernel-lens carries NVIDIA's Apache-2.0 ones of 10.14.

set(TENSORRT_INCLUDE_DIR "" CACHE PATH
    "Folder of NvInferRuntime.h; empty: taken from the wheel of kernel-lens 2.0.1")

if(NOT TENSORRT_INCLUDE_DIR)
  minicache_headers_from_wheel(
    FOUND TENSORRT_INCLUDE_DIR
    WHEEL kernel-lens==2.0.1
    SHA256 07cc714e8b5e7f34b672f7c7fad93febe7c747be5837ba276b1527370134ffe0
    PATH kernel_lens/include/tensorrt
    HEADER NvInferRuntime.h)
  if(NOT TENSORRT_INCLUDE_DIR)
    message(STATUS
            "libminicache_trt.so is left out: `pip download kernel-lens==2.0.1` did not work (log "
            "above). For TensorRT, name the folder of NvInferRuntime.h: -DTENSORRT_INCLUDE_DIR=/path")
    return()
  endif()
elseif(NOT EXISTS ${TENSORRT_INCLUDE_DIR}/NvInferRuntime.h)
  message(FATAL_ERROR "TENSORRT_INCLUDE_DIR is ${TENSORRT_INCLUDE_DIR}, where there is no "
                      "NvInferRuntime.h; correct it, or leave it empty to have it downloaded.")
endif()

add_library(minicache_trt SHARED
  trt/creator.cpp
  trt/execution.cpp
  trt/fields.cpp
  trt/kernel_registry.cpp
  trt/log.cpp
  trt/node.cpp
  trt/plugin.cpp
  trt/plugin_runtime.cpp
  trt/register.cpp
  trt/tensors.cpp)
# Of the CUDA headers TensorRT's need two names.
target_include_directories(minicache_trt SYSTEM PRIVATE ${TENSORRT_INCLUDE_DIR}
                                                        ${CMAKE_CURRENT_SOURCE_DIR}/trt/cuda_types)
minicache_finish_library(minicache_trt "getCreators; setLoggerFinder; minicache_abi_version;")
