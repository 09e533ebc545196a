# attnd_test(NAME attnd_engine_test SRCS a_test.cc ... DEPS attnd::engine ... [LABELS fast]
#            [NO_ASAN] [NO_TSAN] [TIMEOUT seconds])
#   A GoogleTest program (main and gmock included) and one ctest entry for each of its test suites,
#   found by asking the built program. Labels: fast (default), e2e, crash or long. `make test` runs
#   fast, then e2e, then crash, then sanitizer and fuzz entries, then the image; `make test-full` adds
#   long ones.
#   A suite whose name begins with `Long` is labelled long whatever LABELS says.
#   A suite whose name ends in `Figures` measures errors and coverage over whole data sets. It takes
#   minutes under a sanitizer, to which other tests show the same code, and is not run there.
#   The same program is run once more as built by the asan and the tsan presets, each as one entry
#   without its Long and Figures suites, unless NO_ASAN or NO_TSAN is given; `make test-full` adds the
#   gcc preset.
#   Compile definitions: ATTND_SOURCE_DIR and ATTND_BINARY_DIR (strings), and ATTND_SANITIZED in
#   sanitizer and coverage builds, where tests with many random rounds should do fewer.
#
# attnd_fuzz(NAME attnd_decoder_fuzz SRCS decoder_fuzz.cc DEPS attnd::server [CORPUS directory])
#   A libFuzzer program of the asan preset; 20 seconds in `make test`, 5 minutes in `make test-full`.
#
# attnd_bench(NAME attnd_engine_bench SRCS ... DEPS ...)
#   A benchmark program; it links benchmark::benchmark and is built by `make bench`.

add_custom_target(attnd_tests)  # every test program of this build directory
add_custom_target(attnd_benches)

# ctest starts what costs most first, which is what puts the labels in order under -j.
set(ATTND_COST_fast 500)
set(ATTND_COST_e2e 400)
set(ATTND_COST_deploy 350)
set(ATTND_COST_crash 300)
set(ATTND_COST_sanitizer 200)
set(ATTND_COST_fuzz 100)
set(ATTND_COST_image 75)
set(ATTND_COST_long 50)

set(ATTND_TEST_RUNNER "")
if(ATTND_SANITIZE)
  set(ATTND_TEST_RUNNER "${PROJECT_SOURCE_DIR}/scripts/run_sanitized.sh")
endif()

function(attnd_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "NO_ASAN;NO_TSAN" "NAME;TIMEOUT" "SRCS;DEPS;LABELS")
  attnd_reject_unparsed(attnd_test "${arg_UNPARSED_ARGUMENTS}")
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()

  attnd_executable(NAME ${arg_NAME} SRCS ${arg_SRCS} DEPS ${arg_DEPS} GTest::gmock_main)
  target_compile_definitions(
    ${arg_NAME} PRIVATE ATTND_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                        ATTND_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(ATTND_SANITIZE OR ATTND_COVERAGE)
    target_compile_definitions(${arg_NAME} PRIVATE ATTND_SANITIZED=1)
  endif()
  # INSTANTIATE_TEST_SUITE_P and TYPED_TEST_SUITE leave their variadic part empty.
  target_compile_options(
    ${arg_NAME} PRIVATE $<$<CXX_COMPILER_ID:Clang>:-Wno-gnu-zero-variadic-macro-arguments>)
  add_dependencies(attnd_tests ${arg_NAME})

  set(suites "${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}_suites.cmake")
  list(GET arg_LABELS 0 label)
  add_custom_command(
    TARGET ${arg_NAME}
    POST_BUILD
    BYPRODUCTS "${suites}"
    COMMAND
      "${CMAKE_COMMAND}" -D program=$<TARGET_FILE:${arg_NAME}> -D name=${arg_NAME} -D out=${suites}
      -D "runner=${ATTND_TEST_RUNNER}"
      -D "labels=${arg_LABELS}" -D cost=${ATTND_COST_${label}} -D long_cost=${ATTND_COST_long}
      -D timeout=${arg_TIMEOUT} -D directory=${PROJECT_SOURCE_DIR}
      -P "${PROJECT_SOURCE_DIR}/cmake/ListSuites.cmake"
    VERBATIM)
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}_tests.cmake" CONTENT
"if(EXISTS \"${suites}\")
  include(\"${suites}\")
else()
  add_test(${arg_NAME}_NOT_BUILT ${arg_NAME}_NOT_BUILT)
endif()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES
                                         "${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}_tests.cmake")

  if(NOT arg_NO_ASAN)
    attnd_sibling_entry(asan sanitizer ${arg_NAME} ${arg_TIMEOUT}
                          "ASAN_OPTIONS=detect_stack_use_after_return=1" "UBSAN_OPTIONS=print_stacktrace=1")
  endif()
  if(NOT arg_NO_TSAN)
    attnd_sibling_entry(
      tsan sanitizer ${arg_NAME} ${arg_TIMEOUT}
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp ignore_noninstrumented_modules=1")
  endif()
  attnd_sibling_entry(gcc long ${arg_NAME} ${arg_TIMEOUT})
endfunction()

# An entry of this build directory that runs the program of the sibling build directory `tree`.
function(attnd_sibling_entry tree label name timeout)
  if(ATTND_SANITIZE OR ATTND_COVERAGE)
    return()
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_BINARY_DIR BASE_DIRECTORY "${PROJECT_BINARY_DIR}"
             OUTPUT_VARIABLE subdirectory)
  set(program "${PROJECT_SOURCE_DIR}/build/${tree}/${subdirectory}/${name}")
  add_test(
    NAME ${tree}.${name}
    COMMAND "${PROJECT_SOURCE_DIR}/scripts/run_sanitized.sh" "${program}" --gtest_brief=1
            "--gtest_filter=-Long*:*/Long*:*Figures.*:*Figures/*"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  math(EXPR timeout "4 * ${timeout}")
  set_tests_properties(
    ${tree}.${name} PROPERTIES LABELS ${label} COST ${ATTND_COST_${label}}
                               TIMEOUT ${timeout} ENVIRONMENT "${ARGN}")
endfunction()

function(attnd_fuzz)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;CORPUS" "SRCS;DEPS")
  attnd_reject_unparsed(attnd_fuzz "${arg_UNPARSED_ARGUMENTS}")
  if(ATTND_BUILD_FUZZ)
    attnd_executable(NAME ${arg_NAME} SRCS ${arg_SRCS} DEPS ${arg_DEPS})
    target_link_options(${arg_NAME} PRIVATE -fsanitize=fuzzer)
    add_dependencies(attnd_tests ${arg_NAME})
  endif()
  if(ATTND_SANITIZE OR ATTND_COVERAGE)
    return()
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_BINARY_DIR BASE_DIRECTORY "${PROJECT_BINARY_DIR}"
             OUTPUT_VARIABLE subdirectory)
  set(program "${PROJECT_SOURCE_DIR}/build/asan/${subdirectory}/${arg_NAME}")
  set(corpus "")
  if(arg_CORPUS)
    set(corpus "${CMAKE_CURRENT_SOURCE_DIR}/${arg_CORPUS}")
  endif()
  foreach(entry IN ITEMS "fuzz;20" "long;300")
    list(GET entry 0 label)
    list(GET entry 1 seconds)
    set(test ${label}.${arg_NAME})
    add_test(NAME ${test} COMMAND "${PROJECT_SOURCE_DIR}/scripts/fuzz.sh" "${program}" ${seconds} ${corpus})
    math(EXPR timeout "${seconds} + 120")
    set_tests_properties(${test} PROPERTIES LABELS ${label} COST ${ATTND_COST_${label}} TIMEOUT ${timeout})
  endforeach()
endfunction()

function(attnd_bench)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SRCS;DEPS")
  attnd_reject_unparsed(attnd_bench "${arg_UNPARSED_ARGUMENTS}")
  if(ATTND_BUILD_BENCH)
    attnd_executable(NAME ${arg_NAME} SRCS ${arg_SRCS} DEPS ${arg_DEPS} benchmark::benchmark)
    add_dependencies(attnd_benches ${arg_NAME})
  endif()
endfunction()
