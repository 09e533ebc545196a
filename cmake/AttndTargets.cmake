# attnd_library(NAME engine SRCS a.cc HDRS a.h DEPS absl::status [PRIVATE_DEPS DNNL::dnnl])
#   A static library `attnd_engine` with the alias `attnd::engine`. Paths are relative to the calling
#   directory; includes are relative to the project root. Warnings are errors. Every header of HDRS is
#   also compiled on its own. Without SRCS the library is header-only.
#
# attnd_executable(NAME attnd SRCS main.cc DEPS attnd::server)
#   A program, in the build directory that mirrors the calling one.

add_library(attnd_warnings INTERFACE)
target_compile_options(
  attnd_warnings
  INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast
            -Wnon-virtual-dtor -Werror
            # False reports on `"literal" + std::to_string(x)` in C++20 (GCC bug 105329).
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
            $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

function(attnd_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SRCS;HDRS;DEPS;PRIVATE_DEPS")
  attnd_reject_unparsed(attnd_library "${arg_UNPARSED_ARGUMENTS}")
  set(target attnd_${arg_NAME})
  if(arg_SRCS)
    add_library(${target} STATIC ${arg_SRCS} ${arg_HDRS})
    target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS} attnd_warnings)
  else()
    add_library(${target} INTERFACE ${arg_HDRS})
    target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target} INTERFACE ${arg_DEPS})
  endif()
  add_library(attnd::${arg_NAME} ALIAS ${target})
  attnd_check_headers(${target} "${arg_HDRS}" "${arg_PRIVATE_DEPS}")
endfunction()

function(attnd_executable)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SRCS;DEPS")
  attnd_reject_unparsed(attnd_executable "${arg_UNPARSED_ARGUMENTS}")
  add_executable(${arg_NAME} ${arg_SRCS})
  target_include_directories(${arg_NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} attnd_warnings)
endfunction()

# Compiles each header alone, so that none leans on what its users happen to include first.
function(attnd_check_headers target headers private_deps)
  if(NOT ATTND_HEADER_CHECK OR NOT headers)
    return()
  endif()
  set(sources "")
  foreach(header IN LISTS headers)
    cmake_path(ABSOLUTE_PATH header OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE name)
    set(source "${PROJECT_BINARY_DIR}/header_check/${name}.cc")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${name}\"\n")
    list(APPEND sources "${source}")
  endforeach()
  add_library(${target}_header_check OBJECT ${sources})
  target_link_libraries(${target}_header_check PRIVATE ${target} ${private_deps} attnd_warnings)
  target_compile_options(${target}_header_check PRIVATE -O0 -g0)
  if(NOT TARGET attnd_header_check)
    add_custom_target(attnd_header_check)
  endif()
  add_dependencies(attnd_header_check ${target}_header_check)
endfunction()

function(attnd_reject_unparsed caller unparsed)
  if(unparsed)
    message(FATAL_ERROR "${caller}: unknown arguments: ${unparsed}")
  endif()
endfunction()
