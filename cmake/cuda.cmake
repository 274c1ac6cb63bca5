# Turns ZEN_CUDA into ON or OFF and enables the CUDA language where it is ON. nvcc is the one that CUDACXX names, or
# one on PATH, in /usr/local/cuda, or in this Python's site-packages (the wheels of nvidia-cuda-nvcc and companions),
# which come first where the installation has fetched them.

if(ZEN_CUDA AND NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER $ENV{CUDACXX})
endif()
if(ZEN_CUDA AND NOT CMAKE_CUDA_COMPILER)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nvidia; print(*(path + '/cu13' for path in nvidia.__path__), sep=';')"
    OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(TRANSFORM wheels APPEND /bin OUTPUT_VARIABLE wheels_bin)
  if(DEFINED ENV{ZEN_JAX_CUDA})
    set(first HINTS ${wheels_bin})
  endif()
  find_program(ZEN_NVCC nvcc ${first} PATHS /usr/local/cuda/bin ${wheels_bin} NO_CACHE)
  if(ZEN_NVCC)
    set(CMAKE_CUDA_COMPILER ${ZEN_NVCC})
  endif()
endif()

# The wheels keep their libraries in lib, where nvcc looks in lib64 alone.
if(CMAKE_CUDA_COMPILER)
  if(NOT CMAKE_CUDA_FLAGS AND DEFINED ENV{CUDAFLAGS})
    set(CMAKE_CUDA_FLAGS "$ENV{CUDAFLAGS}")  # which CMake ignores where the variable is set, as below
  endif()
  cmake_path(GET CMAKE_CUDA_COMPILER PARENT_PATH nvcc_bin)
  cmake_path(GET nvcc_bin PARENT_PATH cuda_root)
  if(EXISTS "${cuda_root}/lib/libcudart_static.a")
    string(APPEND CMAKE_CUDA_FLAGS " -L${cuda_root}/lib")
  endif()
endif()

if(ZEN_CUDA STREQUAL AUTO)
  set(ZEN_CUDA OFF)
  if(CMAKE_CUDA_COMPILER)
    # With all that the kernels are compiled with, and the header that needs the newest nvcc (12.8): one too old for it
    # would fail after this, and the whole build too.
    separate_arguments(flags UNIX_COMMAND "${CMAKE_CUDA_FLAGS}")
    list(APPEND flags -std=c++17 -Xcompiler=-fPIC)
    list(APPEND flags -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90])
    if(CMAKE_CUDA_HOST_COMPILER)
      list(APPEND flags -ccbin ${CMAKE_CUDA_HOST_COMPILER})
    elseif(DEFINED ENV{CUDAHOSTCXX})
      list(APPEND flags -ccbin $ENV{CUDAHOSTCXX})
    endif()
    execute_process(
      COMMAND ${CMAKE_CUDA_COMPILER} ${flags} -I${PROJECT_SOURCE_DIR}
              -include ${PROJECT_SOURCE_DIR}/cuda/look_back.cuh -shared -x cu /dev/null
              -o ${PROJECT_BINARY_DIR}/nvcc_probe.so
      RESULT_VARIABLE nvcc_fails OUTPUT_QUIET ERROR_VARIABLE nvcc_says)
    if(nvcc_fails)
      message(STATUS "No CUDA kernels: ${CMAKE_CUDA_COMPILER} does not work: ${nvcc_says}")
    else()
      set(ZEN_CUDA ON)
    endif()
  endif()
endif()

if(ZEN_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
endif()
