# Sets ONNXRUNTIME_INCLUDE_DIR to a folder with onnxruntime_cxx_api.h, API 17 or newer.
#
# No ONNX Runtime wheel ships headers. The wheel of amd-quark carries the MIT-licensed ones of API 17,
# the first with everything that is needed here: a library built with them runs on 1.20 and newer.

set(ONNXRUNTIME_INCLUDE_DIR "" CACHE PATH
    "Folder of onnxruntime_cxx_api.h; empty: taken from the wheel of amd-quark 0.13")

if(NOT ONNXRUNTIME_INCLUDE_DIR)
  minicache_headers_from_wheel(
    FOUND ONNXRUNTIME_INCLUDE_DIR
    WHEEL amd-quark==0.13
    SHA256 3b3e58a4cbbcff20d27815b641aa4de4d698efde3c782306cb4a6a05bcf55c8c
    PATH quark/onnx/operators/custom_ops/include/onnxruntime-1.17.0/onnxruntime/core/session
    HEADER onnxruntime_cxx_api.h)
  if(NOT ONNXRUNTIME_INCLUDE_DIR)
    message(FATAL_ERROR
            "The headers of ONNX Runtime are missing: `pip download amd-quark==0.13` did not work "
            "(log above). Either give pip access to a package index that has amd-quark 0.13 and run "
            "again, or name a folder that holds onnxruntime_cxx_api.h: "
            "-DONNXRUNTIME_INCLUDE_DIR=/path (with pip: "
            "--config-settings=cmake.define.ONNXRUNTIME_INCLUDE_DIR=/path).")
  endif()
elseif(NOT EXISTS ${ONNXRUNTIME_INCLUDE_DIR}/onnxruntime_cxx_api.h)
  message(FATAL_ERROR "ONNXRUNTIME_INCLUDE_DIR is ${ONNXRUNTIME_INCLUDE_DIR}, where there is no "
                      "onnxruntime_cxx_api.h; correct it, or leave it empty to have it downloaded.")
endif()
