# minicache_finish_library(target exports): what the libraries have in common. `exports` are the only
# symbols that others see, each with a semicolon.

find_package(Threads REQUIRED)

function(minicache_finish_library target exports)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:minicache_gpu>)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
                                               ${CMAKE_CURRENT_SOURCE_DIR}/include)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  # Templates of the standard library are exported whatever the visibility says, and could be merged
  # with another library's.
  set(map ${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
  file(CONFIGURE OUTPUT ${map} CONTENT "{ global: ${exports} local: *; };\n")
  target_link_options(${target} PRIVATE -Wl,--version-script=${map})
  if(MINICACHE_SANITIZE)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  else()
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
  minicache_install_library(${target})
endfunction()
