# Where the libraries lie: minicache/_lib of the wheel, or of the link tree of an editable install.
# minicache_install_library(target) puts one there.

set(minicache_tree ${CMAKE_BINARY_DIR}/import)

if(SKBUILD_STATE STREQUAL "editable")
  # The import names as links into the repository, and a plain .pth file that names them: Python, mypy
  # and pyright all see the sources, and `cmake --build build/editable` refreshes the libraries in place.
  file(MAKE_DIRECTORY ${minicache_tree}/minicache)
  foreach(package exporter plugins runtime)
    file(REAL_PATH ${CMAKE_CURRENT_SOURCE_DIR}/../${package} source)
    file(CREATE_LINK ${source} ${minicache_tree}/minicache/${package} SYMBOLIC)
  endforeach()
  file(WRITE ${CMAKE_BINARY_DIR}/minicache.pth "${minicache_tree}\n")
  install(FILES ${CMAKE_BINARY_DIR}/minicache.pth DESTINATION .)
endif()

function(minicache_install_library target)
  if(SKBUILD_STATE STREQUAL "editable")
    set_target_properties(${target} PROPERTIES
                          LIBRARY_OUTPUT_DIRECTORY ${minicache_tree}/minicache/_lib)
  else()
    install(TARGETS ${target} LIBRARY DESTINATION minicache/_lib)
  endif()
endfunction()
