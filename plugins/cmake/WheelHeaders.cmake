# minicache_headers_from_wheel(FOUND <variable> WHEEL <name==version> SHA256 <hash> PATH <in the wheel>
#                              HEADER <file>)
# Sets the variable to a folder in the build tree that holds PATH of a wheel, downloaded by pip, if it
# holds the header then; else to an empty string, and says what pip said. Some headers come in no other
# package that can be had without an account.

function(minicache_headers_from_wheel)
  cmake_parse_arguments(arg "" "FOUND;WHEEL;SHA256;PATH;HEADER" "" ${ARGN})
  string(REGEX REPLACE "==.*" "" name ${arg_WHEEL})
  set(folder ${CMAKE_BINARY_DIR}/${name}-headers)
  # Not cached: an emptied build folder must download again.
  set(${arg_FOUND} ${folder}/${arg_PATH} PARENT_SCOPE)
  if(EXISTS ${folder}/${arg_PATH}/${arg_HEADER})
    return()
  endif()
  message(STATUS "Downloading headers (${arg_WHEEL})")
  file(WRITE ${folder}/requirements.txt "${arg_WHEEL} --hash=sha256:${arg_SHA256}\n")
  # Any Python's pip will do. An isolated build's PYTHONPATH hides pip and breaks other Pythons.
  find_package(Python COMPONENTS Interpreter QUIET)
  set(arguments download --no-deps --require-hashes --only-binary=:all: --disable-pip-version-check
                --requirement ${folder}/requirements.txt --dest ${folder})
  set(log "")
  foreach(pip "${Python_EXECUTABLE};-m;pip" "python3;-m;pip" "python;-m;pip" "pip3" "pip")
    execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH ${pip} ${arguments}
                    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT failed)
      file(GLOB wheel ${folder}/*.whl)
      execute_process(COMMAND ${CMAKE_COMMAND} -E tar xf ${wheel} -- ${arg_PATH}
                      WORKING_DIRECTORY ${folder} RESULT_VARIABLE failed)
      file(REMOVE ${wheel})
      break()
    endif()
    string(REPLACE ";" " " pip "${pip}")
    string(APPEND log "${pip}: ${failed}\n${output}\n")
  endforeach()
  if(NOT EXISTS ${folder}/${arg_PATH}/${arg_HEADER})
    message(STATUS "${log}")
    set(${arg_FOUND} "" PARENT_SCOPE)
  endif()
endfunction()
