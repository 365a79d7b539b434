# minicache_add_isa_kernels(target): compiles the kernels once per instruction set, each time into a
# namespace of its own (MINICACHE_ISA), and adds them to the target. cpu/dispatch.cpp chooses.

function(_minicache_add_isa target isa)
  add_library(minicache_${isa} OBJECT cpu/attend.cpp cpu/encode.cpp cpu/encode_joint.cpp
                                      cpu/finish.cpp cpu/isa_kernels.cpp cpu/observe.cpp)
  target_include_directories(minicache_${isa} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
                                                      ${CMAKE_CURRENT_SOURCE_DIR}/include)
  target_compile_definitions(minicache_${isa} PRIVATE MINICACHE_ISA=${isa})
  # Contraction: a * b + c is one instruction where there is one. No -ffast-math: infinities matter.
  # Math errno would keep the square root from being an instruction.
  target_compile_options(minicache_${isa} PRIVATE -Wall -Wextra -ffp-contract=fast -fno-math-errno
                                                  ${ARGN})
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:minicache_${isa}>)
endfunction()

function(minicache_add_isa_kernels target)
  _minicache_add_isa(${target} baseline)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    return()
  endif()
  target_compile_definitions(${target} PRIVATE MINICACHE_X86)
  _minicache_add_isa(${target} avx2 -mavx2 -mfma -mf16c)
  # GCC 12 takes the undefined operands inside its own AVX-512 intrinsics for ours (bug 105593).
  set(avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
             -mprefer-vector-width=512 -Wno-uninitialized -Wno-maybe-uninitialized)
  _minicache_add_isa(${target} avx512 ${avx512})
  _minicache_add_isa(${target} avx512vnni ${avx512} -mavx512vnni)
endfunction()
