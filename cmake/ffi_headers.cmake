# Sets ZEN_FFI_INCLUDE_DIR to the XLA FFI headers that jaxlib ships. A handler runs on the jaxlib whose headers
# it was compiled with and on every later one, so the build requirements pin the oldest supported jaxlib.

if(NOT ZEN_FFI_INCLUDE_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "from importlib.util import find_spec; print(find_spec('jaxlib').submodule_search_locations[0])"
    OUTPUT_VARIABLE jaxlib_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE jaxlib_missing ERROR_QUIET)
  if(jaxlib_missing)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no jaxlib: install it, or set ZEN_FFI_INCLUDE_DIR")
  endif()
  # Not cached: an isolated build environment has another path each time.
  set(ZEN_FFI_INCLUDE_DIR "${jaxlib_dir}/include")
endif()
if(NOT EXISTS "${ZEN_FFI_INCLUDE_DIR}/xla/ffi/api/ffi.h")
  message(FATAL_ERROR "no xla/ffi/api/ffi.h in ${ZEN_FFI_INCLUDE_DIR}")
endif()
