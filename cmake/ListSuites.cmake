# Runs `program` --gtest_list_tests and writes one ctest entry per test suite to `out`.
# Parameters: runner (what to start it with, or empty), program, name, out, labels, cost, long_cost,
# timeout, directory.

execute_process(COMMAND ${runner} "${program}" --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${program} --gtest_list_tests failed: ${failed}")
endif()

# A suite is a line `Name.`, perhaps with a comment; its tests are indented.
string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\." lines "${listing}")
set(command "[==[${program}]==]")
if(runner)
  set(command "[==[${runner}]==] ${command}")
endif()
set(script "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "[\n.]" "" suite "${line}")
  set(suite_labels "${labels}")
  set(suite_cost ${cost})
  if(suite MATCHES "(^|/)Long")
    set(suite_labels long)
    set(suite_cost ${long_cost})
  endif()
  string(APPEND script
         "add_test([==[${name}.${suite}]==] ${command} --gtest_brief=1 [==[--gtest_filter=${suite}.*]==])\n"
         "set_tests_properties([==[${name}.${suite}]==] PROPERTIES LABELS [==[${suite_labels}]==] COST ${suite_cost}"
         " TIMEOUT ${timeout} WORKING_DIRECTORY [==[${directory}]==])\n")
endforeach()
if(NOT script)
  message(FATAL_ERROR "${program} holds no tests")
endif()
file(WRITE "${out}" "${script}")
