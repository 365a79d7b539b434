# Where the library lies: minicache/_lib of the wheel, or of the link tree of an editable install.

if(SKBUILD_STATE STREQUAL "editable")
  # The import names as links into the repository, and a plain .pth file that names them: Python, mypy
  # and pyright all see the sources, and `cmake --build build/editable` refreshes the library in place.
  set(tree ${CMAKE_BINARY_DIR}/import)
  file(MAKE_DIRECTORY ${tree}/minicache)
  foreach(package exporter plugins runtime)
    file(REAL_PATH ${CMAKE_CURRENT_SOURCE_DIR}/../${package} source)
    file(CREATE_LINK ${source} ${tree}/minicache/${package} SYMBOLIC)
  endforeach()
  file(WRITE ${CMAKE_BINARY_DIR}/minicache.pth "${tree}\n")
  install(FILES ${CMAKE_BINARY_DIR}/minicache.pth DESTINATION .)
  set_target_properties(minicache_ort PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${tree}/minicache/_lib)
else()
  install(TARGETS minicache_ort LIBRARY DESTINATION minicache/_lib)
endif()
