# Sets ONNXRUNTIME_INCLUDE_DIR to a folder with onnxruntime_cxx_api.h, API 17 or newer.
#
# No ONNX Runtime wheel ships headers. The wheel of amd-quark carries the MIT-licensed ones of API 17,
# the first with everything that is needed here: a library built with them runs on 1.20 and newer.

set(ONNXRUNTIME_INCLUDE_DIR "" CACHE PATH
    "Folder of onnxruntime_cxx_api.h; empty: taken from the wheel of amd-quark 0.13")

set(_requirement
    "amd-quark==0.13 --hash=sha256:3b3e58a4cbbcff20d27815b641aa4de4d698efde3c782306cb4a6a05bcf55c8c")
set(_in_wheel
    "quark/onnx/operators/custom_ops/include/onnxruntime-1.17.0/onnxruntime/core/session")

function(_minicache_download_headers folder)
  file(MAKE_DIRECTORY ${folder})
  file(WRITE ${folder}/requirements.txt "${_requirement}\n")
  # The build environment's Python first; an isolated one has no pip, another Python's serves as well.
  find_package(Python COMPONENTS Interpreter QUIET)
  set(arguments download --no-deps --require-hashes --only-binary=:all: --disable-pip-version-check
                --requirement ${folder}/requirements.txt --dest ${folder})
  set(log "")
  foreach(pip "${Python_EXECUTABLE};-m;pip" "python3;-m;pip" "python;-m;pip" "pip3" "pip")
    execute_process(COMMAND ${pip} ${arguments} RESULT_VARIABLE failed OUTPUT_VARIABLE output
                    ERROR_VARIABLE output)
    if(NOT failed)
      file(GLOB wheel ${folder}/amd_quark-*.whl)
      execute_process(COMMAND ${CMAKE_COMMAND} -E tar xf ${wheel} -- ${_in_wheel}
                      WORKING_DIRECTORY ${folder} RESULT_VARIABLE failed)
      file(REMOVE ${wheel})
      return()
    endif()
    string(REPLACE ";" " " pip "${pip}")
    string(APPEND log "${pip}: ${failed}\n${output}\n")
  endforeach()
  message(STATUS "${log}")
endfunction()

if(NOT ONNXRUNTIME_INCLUDE_DIR)
  set(_folder ${CMAKE_BINARY_DIR}/onnxruntime-headers)
  if(NOT EXISTS ${_folder}/${_in_wheel}/onnxruntime_cxx_api.h)
    message(STATUS "Downloading the headers of ONNX Runtime (amd-quark 0.13)")
    _minicache_download_headers(${_folder})
  endif()
  if(NOT EXISTS ${_folder}/${_in_wheel}/onnxruntime_cxx_api.h)
    message(FATAL_ERROR
            "The headers of ONNX Runtime are missing: `pip download amd-quark==0.13` did not work "
            "(log above). Either give pip access to a package index that has amd-quark 0.13 and run "
            "again, or name a folder that holds onnxruntime_cxx_api.h: "
            "-DONNXRUNTIME_INCLUDE_DIR=/path (with pip: "
            "--config-settings=cmake.define.ONNXRUNTIME_INCLUDE_DIR=/path).")
  endif()
  # Not cached: an emptied build folder must download again.
  set(ONNXRUNTIME_INCLUDE_DIR ${_folder}/${_in_wheel})
elseif(NOT EXISTS ${ONNXRUNTIME_INCLUDE_DIR}/onnxruntime_cxx_api.h)
  message(FATAL_ERROR "ONNXRUNTIME_INCLUDE_DIR is ${ONNXRUNTIME_INCLUDE_DIR}, where there is no "
                      "onnxruntime_cxx_api.h; correct it, or leave it empty to have it downloaded.")
endif()
