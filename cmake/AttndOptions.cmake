# Options and everything that decides how a translation unit is compiled.

option(ATTND_BUILD_TESTS "Build the tests" ON)
option(ATTND_BUILD_BENCH "Build the benchmarks" ON)
option(ATTND_BUILD_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(ATTND_COVERAGE "Instrument for line coverage" OFF)
option(ATTND_HEADER_CHECK "Compile every header on its own" ON)
set(ATTND_SANITIZE "" CACHE STRING "address (with undefined), thread, or empty")
set_property(CACHE ATTND_SANITIZE PROPERTY STRINGS "" address thread)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
include(CheckPIESupported)
check_pie_supported(LANGUAGES CXX)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# One result for one program: the compiler must not fuse a*b+c on its own, as it would do so in one
# function and not in the next. Code that wants a fused multiply-add says so. For the same reason
# there is no -ffast-math and no -march: instruction sets are chosen at run time.
add_compile_options(-ffp-contract=off)

if(ATTND_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(ATTND_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(ATTND_SANITIZE)
  message(FATAL_ERROR "ATTND_SANITIZE is '${ATTND_SANITIZE}'; it must be address, thread or empty")
endif()

if(ATTND_BUILD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "ATTND_BUILD_FUZZ needs clang; the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(ATTND_COVERAGE)
  add_compile_options(--coverage)
  add_link_options(--coverage)
endif()

if(CMAKE_BUILD_TYPE STREQUAL "Debug" OR ATTND_SANITIZE)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()

find_program(ATTND_CCACHE ccache)
if(ATTND_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${ATTND_CCACHE}")
endif()

find_program(ATTND_MOLD mold)
find_program(ATTND_LLD ld.lld)
if(ATTND_MOLD)
  add_link_options(-fuse-ld=mold)
elseif(ATTND_LLD)
  add_link_options(-fuse-ld=lld)
endif()
